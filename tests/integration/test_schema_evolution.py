"""State whose type changes between two runs of a job."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import pydantic
import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.checkpoint import load_metadata
from sluiceway.connector.lib import DiscardSink
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.plugins import default_manager
from sluiceway.serializers import decode_block, encode_block
from sluiceway.state import TableSchema
from sluiceway.testing import OperatorHarness

BACKENDS = ["memory", "rocksdb"]
WORDS = ["ann", "bob", "cleo"]


def dataclasses() -> tuple[type, type]:
    @dataclass
    class Visits:
        count: int
        note: str = "-"
        gone: int = 7

    old = Visits

    @dataclass
    class Visits:
        total: Annotated[float, sw.RenamedFrom("count")]
        tags: list[str] = field(default_factory=list)
        note: str | None = None

    return old, Visits


def structs() -> tuple[type, type]:
    class Visits(msgspec.Struct):
        count: int
        note: str = "-"
        gone: int = 7

    old = Visits

    class Visits(msgspec.Struct):
        total: float = msgspec.field(name="count")
        tags: list[str] = []
        note: str | None = None

    return old, Visits


def structs_by_place() -> tuple[type, type]:
    class Visits(msgspec.Struct, array_like=True, tag=True):
        count: int
        note: str = "-"
        gone: int = 7

    old = Visits

    class Visits(msgspec.Struct, array_like=True):
        tags: list[str] = msgspec.field(default_factory=list)
        total: Annotated[float, sw.RenamedFrom("count")] = 0.0
        note: str | None = None

    return old, Visits


def named_tuples() -> tuple[type, type]:
    class Visits(NamedTuple):
        gone: int
        count: int
        note: str = "-"

    old = Visits

    class Visits(NamedTuple):
        total: Annotated[float, sw.RenamedFrom("count")]
        tags: list[str] = []  # noqa: RUF012
        note: str | None = None

    return old, Visits


def models() -> tuple[type, type]:
    class Visits(pydantic.BaseModel):
        count: int
        note: str = "-"
        gone: int = 7

    old = Visits

    class Visits(pydantic.BaseModel):
        total: float = pydantic.Field(validation_alias=pydantic.AliasChoices("total", "count"))
        tags: list[str] = []
        note: str | None = None

    return old, Visits


class Saving(sw.KeyedProcessFunction[str, str, Any]):
    """Gives on what it finds, and leaves one value for each key."""

    def __init__(self, kind: str, type_: Any, make: Any = None, **options: Any) -> None:
        self.kind, self.type, self.make, self.options = kind, type_, make, options

    def open(self, context: Any) -> None:
        if self.kind == "value":
            self.state = context.get_state(sw.ValueStateDescriptor("visits", self.type, **self.options))
        elif self.kind == "list":
            self.state = context.get_list_state(sw.ListStateDescriptor("visits", self.type, **self.options))
        else:
            self.state = context.get_map_state(
                sw.MapStateDescriptor("visits", self.type, key_type=str, **self.options)
            )

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.kind == "value":
            yield value, self.state.value()
        else:
            yield value, list(self.state.get() if self.kind == "list" else self.state.items())
        if self.make is not None:
            made = self.make(value)
            if self.kind == "value":
                self.state.update(made)
            elif self.kind == "list":
                self.state.update([made])
            else:
                self.state.put("first", made)


def saved(function: Any, place: Path, **options: Any) -> Path:
    """Run a job until each word was seen, and end it with a savepoint."""
    flow = sw.Pipeline("visits", max_parallelism=16)
    numbers = flow.source(GeneratorSource(count=10**9, rate=2_000)).uid("numbers")
    words = numbers.map(lambda n: WORDS[n % len(WORDS)]).key_by(lambda w: w)
    words.process(function).uid("visits").sink(DiscardSink()).uid("out")

    async def go() -> str:
        async with await flow.start(restart="none", **options) as handle:
            while handle.metrics().records_out < 20:
                await asyncio.sleep(0.002)
            location = await handle.stop(savepoint=place)
            await handle.result()
            return location

    return Path(asyncio.run(go()))


def again(location: Path, function: Any, **options: Any) -> dict[str, Any]:
    """Go on from there with each word once, and give what the function has for it."""
    flow = sw.Pipeline("visits", max_parallelism=16)
    words = flow.from_collection(WORDS).uid("words").key_by(lambda w: w)
    found = words.process(function).uid("visits").collect()
    flow.run(from_checkpoint=location, allow_dropped_state=True, **{"restart": "none", **options})
    return dict(found)


CASES = [(forms, None, "value") for forms in (dataclasses, structs, structs_by_place, named_tuples, models)]
CASES += [(dataclasses, None, "list"), (models, None, "map")]
CASES += [(named_tuples, "1h", kind) for kind in ("value", "list", "map")]


@pytest.mark.parametrize(("case", "backend"), diagonal(CASES, BACKENDS))
def test_fields_are_added_removed_renamed_and_widened(
    case: tuple[Any, str | None, str], backend: Any, tmp_path: Path
) -> None:
    forms, ttl, kind = case
    old, new = forms()
    options = {} if ttl is None else {"ttl": sw.StateTtlConfig(ttl)}

    def make(word: str) -> Any:
        return old(count=len(word), gone=3) if forms is named_tuples else old(count=len(word))

    location = saved(Saving(kind, old, make, **options), tmp_path, state_backend=backend, parallelism=2)
    found = again(location, Saving(kind, new, **options), state_backend=backend, parallelism=3)
    wrapped: dict[str, Any] = {"value": lambda v: v, "list": lambda v: [v], "map": lambda v: [("first", v)]}
    for word in ("ann", "bob", "cleo"):
        fields = {"total": float(len(word)), "tags": [], "note": "-"}
        expected = new.model_construct(**fields) if forms is models else new(**fields)
        assert found[word] == wrapped[kind](expected)
        one = found[word] if kind == "value" else found[word][0] if kind == "list" else found[word][0][1]
        assert type(one) is new
        assert type(one.total) is float


@dataclass
class Point:
    x: int
    y: float = 0.0


OldPoint = Point


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts another class in the place of Point."""
    return lambda cls: monkeypatch.setitem(globals(), "Point", cls)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_that_was_pickled_within_typed_state_is_read_without_its_class(
    newer: Any, backend: str, tmp_path: Path
) -> None:
    # An int in a field of floats: msgpack would not give it back as it was.
    location = saved(Saving("value", Point, lambda word: OldPoint(len(word), 1)), tmp_path, state_backend=backend)

    @dataclass(slots=True)
    class Point_:
        y: float
        z: Annotated[int | None, sw.RenamedFrom("x")] = None

    Point_.__name__ = Point_.__qualname__ = "Point"
    newer(Point_)
    found = again(location, Saving("value", Point_), state_backend=backend, parallelism=2)
    assert found["ann"] == Point_(1.0, 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_function_of_the_user_makes_new_values(kind: str, backend: str, tmp_path: Path) -> None:
    location = saved(Saving(kind, OldPoint, lambda word: OldPoint(len(word))), tmp_path, state_backend=backend)
    seen = []

    def migrate(old: Any) -> int:
        seen.append(old)
        return int(old["x"] * 100)

    found = again(location, Saving(kind, int, migrate=migrate), state_backend=backend, parallelism=3)
    assert found == {
        word: {"value": n, "list": [n], "map": [("first", n)]}[kind]
        for word, n in (("ann", 300), ("bob", 300), ("cleo", 400))
    }
    assert sorted(seen, key=str) == [{"x": 3, "y": 0.0}, {"x": 3, "y": 0.0}, {"x": 4, "y": 0.0}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_untyped_state_goes_on_typed_with_a_function(backend: str, tmp_path: Path) -> None:
    location = saved(Saving("value", None, lambda word: {"x": len(word)}), tmp_path, state_backend=backend)
    with pytest.raises(StateError, match="what was saved is pickled, which does not say what is in it"):
        again(location, Saving("value", OldPoint), state_backend=backend)
    migrating = Saving("value", OldPoint, migrate=lambda old: OldPoint(**old))
    assert again(location, migrating, state_backend=backend)["cleo"] == OldPoint(4)


def test_what_does_not_go_together_is_refused_with_both_types(tmp_path: Path) -> None:
    location = saved(Saving("value", OldPoint, lambda word: OldPoint(len(word))), tmp_path)

    @dataclass
    class Point:
        x: str
        y: float = 0.0

    textual = Point
    head = (
        "state 'visits' of operator 'visits' cannot be restored: the snapshot holds a value table of Point "
        "(serializer 'msgspec', version 1), the job declares a value table of "
    )
    tail = (
        ". Declare it as it was, give its descriptor migrate=, a function that makes a new value of an old one, "
        "give the new one another name, or start without the snapshot"
    )
    assert refusal(location, Saving("value", textual)) == (
        f"{head}Point (serializer 'msgspec', version 1): field 'x' of Point was int and is str now{tail}"
    )

    @dataclass
    class Point:
        x: int
        z: int

    assert refusal(location, Saving("value", Point)) == (
        f"{head}Point (serializer 'msgspec', version 1): field 'z' of Point is new and has no default (a field "
        f"that was renamed says so: Annotated[..., RenamedFrom('x')]){tail}"
    )

    @dataclass
    class Other:
        x: int = 0

    assert refusal(location, Saving("value", Other)) == (
        f"{head}Other (serializer 'msgspec', version 1): a value was Point(x: int, y: float) and is Other(x: int) "
        f"now{tail}"
    )

    @dataclass
    class Point:
        a: int = 0

    assert "Point has none of the fields any more that it had" in refusal(location, Saving("value", Point))
    assert "migrate returned None, which is no int" in refusal(
        location, Saving("value", int, migrate=lambda old: None)
    )
    assert "KeyError: 'q'" in refusal(location, Saving("value", int, migrate=lambda old: old["q"]))


@pytest.mark.parametrize("type_", [None, int, list[int]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_is_restored_from_a_list_alone(backend: str, type_: Any, tmp_path: Path) -> None:
    make = (lambda word: [len(word)]) if type_ == list[int] else len
    location = saved(Saving("value", type_, make), tmp_path, state_backend=backend)
    with pytest.raises(StateError, match="it was saved as value state, the job declares list state"):
        again(location, Saving("list", int if type_ == list[int] else type_), state_backend=backend)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_refused_job_is_not_restarted(workers: int, tmp_path: Path) -> None:
    location = saved(Saving("value", OldPoint, lambda word: OldPoint(len(word))), tmp_path)
    with pytest.raises(StateError, match="a value was Point") as caught:
        again(location, Saving("value", bytes), workers=workers, restart="fixed-delay:1000:10s")
    assert "the job is not restarted" not in "".join(getattr(caught.value, "__notes__", ()))


def refusal(location: Path, function: Saving) -> str:
    with pytest.raises(StateError) as caught:
        again(location, function)
    return str(caught.value)


def test_the_schema_is_in_the_metadata(tmp_path: Path) -> None:
    location = saved(Saving("map", OldPoint, lambda word: OldPoint(len(word))), tmp_path)
    storage = default_manager().checkpoint_storage(str(tmp_path))
    [table] = [
        table
        for vertex in load_metadata(storage, location.name).vertices
        for subtask in vertex.subtasks
        for operator in subtask.operators
        for table in (operator.keyed.tables if operator.keyed else ())
        if table.name == "visits"
    ]
    point = {
        "record": "Point",
        "module": __name__,
        "qualname": "Point",
        "form": "dataclass",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "float", "default": True}],
    }
    assert table.schema == {"tuple": ["str", point]}


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (int, float, 3, 3.0),
        (int, float | None, 3, 3.0),
        (int | None, float | None, None, None),
        (list[int], list[float | str], [1], [1.0]),
        (dict[str, set[int]], dict[str, set[float]], {"a": {1}}, {"a": {1.0}}),
        (tuple[int, str], tuple[float, str], (1, "a"), (1.0, "a")),
        (tuple[int, ...], tuple[float, ...], (1, 2), (1.0, 2.0)),
        (dt.date, dt.date | None, dt.date(2024, 2, 29), dt.date(2024, 2, 29)),
        (Literal["a"], Literal["a", "b"], "a", "a"),
    ],
)
def test_scalars_and_collections_are_widened(old: Any, new: Any, value: Any, expected: Any) -> None:
    before, after = (TableSchema.of(sw.ValueStateDescriptor("s", hint)) for hint in (old, new))
    found = after.reader_for(before.meta, "op").loads(before.serializer.dumps(value))
    assert found == expected
    assert repr(found) == repr(expected)
    with pytest.raises(StateError, match="cannot be restored"):
        before.reader_for(after.meta, "op")


class Place(NamedTuple):
    x: int
    tags: frozenset[str] = frozenset()


class Grid(msgspec.Struct, array_like=True, tag=True, frozen=True):
    place: Place


class Named(msgspec.Struct):
    x: int


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (dict[Place, int], {Place(1, frozenset("a")): 2}),
        (dict[Grid | None, int], {Grid(Place(1)): 2, None: 3}),
        (dict[frozenset[int], int], {frozenset({1, 2}): 3}),
        (dict[tuple[Place, str], int], {(Place(2**70), "a"): 2}),  # pickled
    ],
)
def test_a_dict_keeps_its_keys_when_a_type_beside_it_changes(type_: Any, value: Any) -> None:
    assert evolved(tuple[type_, int], tuple[type_, float], (value, 1)) == (value, 1.0)


@pytest.mark.parametrize("type_", [Place | Named, Named | Place, Place | dict[str, int], dict[str, int] | Place])
def test_what_is_written_by_place_and_what_by_name_stay_apart_in_a_union(type_: Any) -> None:
    for value in (Place(1), Named(1) if Named in get_args(type_) else {"x": 1}):
        found, _ = evolved(tuple[type_, int], tuple[type_, float], (value, 1))
        assert found == value
        assert type(found) is type(value)


def test_many_untyped_scalars_go_on_typed() -> None:
    before = TableSchema.of(sw.ValueStateDescriptor("s"))
    after = TableSchema.of(sw.ValueStateDescriptor("s", OldPoint, migrate=OldPoint))
    block = encode_block(0, b"\x90", before.serializer, ["a", "b"], [1, 2])
    assert block is not None
    assert decode_block(block, after.reader_for(before.meta, "op")) == (["a", "b"], [OldPoint(1), OldPoint(2)])


def test_a_number_that_would_lose_digits_is_not_widened() -> None:
    before, after = (TableSchema.of(sw.ValueStateDescriptor("s", hint)) for hint in (int, float))
    with pytest.raises(SerializationError, match="9007199254740993 has too many digits for a float"):
        after.reader_for(before.meta, "op").loads(before.serializer.dumps(2**53 + 1))


def evolved(old: Any, new: Any, value: Any, **options: Any) -> Any:
    """Return a value of an older type as it is read by one of today."""
    written = TableSchema.of(sw.ValueStateDescriptor("s", old))
    now = TableSchema.of(sw.ValueStateDescriptor("s", new, **options))
    return now.reader_for(written.meta, "op").loads(written.serializer.dumps(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(1.5), 1.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(3), 3.0),
        (3, 3.0),
        (True, 1.0),
        (Fraction(1, 2), 0.5),
        (np.float64("nan"), float("nan")),
    ],
    ids=repr,
)
def test_numbers_that_conform_to_a_type_of_an_older_form_become_of_that_type(
    newer: Any, value: Any, expected: Any
) -> None:
    @dataclass
    class Point_:
        x: int | str
        y: float
        z: int = 5

    Point_.__name__ = Point_.__qualname__ = "Point"
    newer(Point_)
    found = evolved(OldPoint, Point_, OldPoint(np.int64(3), value))
    assert repr(found) == repr(Point_(3, expected, 5))
    assert evolved(OldPoint, int, OldPoint(True), migrate=lambda old: old["x"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (int, float, True, 1.0),
        (int | None, float | None, np.int32(2), 2.0),
        (float | None, list[int] | float | None, np.float64(1.5), 1.5),
        (tuple[str, bytes], tuple[str | None, bytes], (np.str_("a"), bytearray(b"b")), ("a", b"b")),
    ],
    ids=repr,
)
def test_scalars_that_conform_to_an_older_type_become_of_that_type(
    old: Any, new: Any, value: Any, expected: Any
) -> None:
    assert repr(evolved(old, new, value)) == repr(expected)


@pytest.mark.parametrize("value", [2**70 + 1, Fraction(1, 3)])
def test_a_number_that_no_float_equals_is_refused(newer: Any, value: Any) -> None:
    @dataclass
    class Point_:
        x: int
        y: float = 0.0
        z: int = 5

    Point_.__name__ = Point_.__qualname__ = "Point"
    newer(Point_)
    with pytest.raises(
        SerializationError, match=r"has too many digits for a float|Expected `float`, got `Fraction`"
    ):
        evolved(OldPoint, Point_, OldPoint(1, value))
    assert evolved(OldPoint, str, OldPoint(1, value), migrate=lambda old: repr(old["y"])) == repr(value)


def subclassed(base: Any) -> Any:
    """Return a subclass as its module has it where its base is this one."""

    @dataclass(frozen=base.__dataclass_params__.frozen)
    class Place(base):
        name: str = "here"

    Place.__qualname__ = "Place"
    return Place


def test_an_object_of_a_subclass_is_one_of_it_with_a_new_field(
    newer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = subclassed(OldPoint)
    monkeypatch.setitem(globals(), "Place", old)
    written = TableSchema.of(sw.ListStateDescriptor("s", OldPoint))
    data = written.serializer.dumps([old(3, 1, "there"), OldPoint(4)])
    nested = TableSchema.of(sw.ValueStateDescriptor("s", tuple[OldPoint, int]))
    inside = nested.serializer.dumps((old(3, 1, "there"), 1))

    @dataclass
    class Point_:
        y: float
        z: Annotated[int, sw.RenamedFrom("x")] = 0
        tags: list[str] = field(default_factory=list)

    Point_.__name__ = Point_.__qualname__ = "Point"
    newer(Point_)
    today = subclassed(Point_)
    monkeypatch.setitem(globals(), "Place", today)
    now = TableSchema.of(sw.ListStateDescriptor("s", Point_))
    found = now.reader_for(written.meta, "op").loads(data)
    assert found == [today(1.0, 3, [], "there"), Point_(0.0, 4, [])]
    assert list(map(vars, found)) == [vars(today(1.0, 3, [], "there")), vars(Point_(0.0, 4, []))]

    names = TableSchema.of(sw.ListStateDescriptor("s", str, migrate=lambda old: old.get("name", "none")))
    assert names.reader_for(written.meta, "op").loads(data) == ["there", "none"]

    whole = TableSchema.of(sw.ValueStateDescriptor("s", tuple[Point_, int]))
    with pytest.raises(
        SerializationError,
        match=r"object of Place, a subclass of Point, is a part of another value: give .* migrate=",
    ):
        whole.reader_for(nested.meta, "op").loads(inside)


class Base(msgspec.Struct):
    n: int


class Sub(Base):
    name: str = "x"


def test_an_object_of_a_subclass_that_is_not_saved_by_name_is_refused() -> None:
    class Base_(msgspec.Struct):
        n: int
        m: int = 0

    Base_.__name__ = Base_.__qualname__ = "Base"
    with pytest.raises(SerializationError, match="object of Sub, a subclass of Base, was saved without the names"):
        evolved(Base, Base_, Sub(1))


def test_operator_state_changes_its_type_too() -> None:
    def kept(descriptor: Any, words: list[int], restored: Any = None) -> tuple[Any, Any]:
        class Keeping(sw.MapFunction[int, Any], sw.CheckpointedFunction):
            def initialize_state(self, context: Any) -> None:
                self.kept = context.operator_state_store.get_list_state(descriptor)

            def snapshot_state(self, context: Any) -> None:
                """The state is always up to date."""

            def map(self, value: Any) -> Any:
                found = self.kept.get()
                if value:
                    self.kept.add(OldPoint(value))
                return found

        with OperatorHarness(lambda s: s.map(Keeping()).uid("kept"), restored=restored) as harness:
            return [found for word in words for found in harness.process(word)], harness.snapshot()

    @dataclass
    class Point:
        x: float
        tags: list[int] = field(default_factory=list)

    _, snapshot = kept(sw.ListStateDescriptor("kept", OldPoint), [1, 2])
    assert kept(sw.ListStateDescriptor("kept", Point), [0], snapshot)[0] == [[Point(1.0), Point(2.0)]]
    halves = sw.ListStateDescriptor("kept", float, migrate=lambda old: old["x"] / 2)
    assert kept(halves, [0], snapshot)[0] == [[0.5, 1.0]]
    with pytest.raises(StateError, match=r"'kept' of operator 'kept' cannot be restored: .* a value was Point"):
        kept(sw.ListStateDescriptor("kept", str), [0], snapshot)
    with pytest.raises(StateError, match="has migrate=, and no type whose fields are saved"):
        kept(sw.ListStateDescriptor("kept", migrate=len), [0], snapshot)


def test_migrate_is_refused_where_it_would_never_be_called() -> None:
    with pytest.raises(TypeError, match="migrate takes a function, not 3"):
        sw.ValueStateDescriptor("s", int, migrate=3)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="state 's' has migrate=, and no type whose fields are saved"):
        TableSchema.of(sw.MapStateDescriptor("s", int, migrate=len))
    rules = sw.Pipeline("rules").from_collection([1])
    with pytest.raises(sw.GraphError, match="state 's' has migrate=, which is of no use for broadcast state"):
        rules.broadcast(sw.MapStateDescriptor("s", int, key_type=str, migrate=len))


def test_models_keep_which_of_their_fields_were_given() -> None:
    old, _ = models()
    serializer = TableSchema.of(sw.ValueStateDescriptor("s", old)).serializer
    assert serializer.name == "msgspec"
    found = serializer.loads(serializer.dumps(old(count=1)))
    assert found == old(count=1)
    assert found.model_fields_set == {"count"}


def test_values_with_a_new_field_are_not_pickled_when_they_are_saved_again() -> None:
    old, new = dataclasses()
    written = TableSchema.of(sw.ValueStateDescriptor("visits", old))
    now = TableSchema.of(sw.ValueStateDescriptor("visits", new))
    value = now.reader_for(written.meta, "op").loads(written.serializer.dumps(old(3)))
    assert vars(value) == {"total": 3.0, "tags": [], "note": "-"}
    without_note = msgspec.msgpack.encode({"count": 3})
    assert vars(now.reader_for(written.meta, "op").loads(without_note)) == {"total": 3.0, "tags": [], "note": None}
    assert now.serializer.dumps(value)[:1] != b"\xc1"


def test_a_field_that_is_new_is_saved_as_a_field() -> None:
    @dataclass
    class Sum:
        total: int

    old = Sum

    @dataclass
    class Sum:  # type: ignore[no-redef]
        total: int
        note: str = "-"

    written = TableSchema.of(sw.ValueStateDescriptor("sum", old))
    now = TableSchema.of(sw.ValueStateDescriptor("sum", Sum))
    value = now.reader_for(written.meta, "op").loads(written.serializer.dumps(old(3)))
    assert vars(value) == {"total": 3, "note": "-"}
    assert now.serializer.dumps(value)[:1] != b"\xc1"


class AskingLate(sw.KeyedProcessFunction[str, str, Any]):
    """Adds one to a state that it asks for with its first record, and to another one."""

    def __init__(self, type_: Any) -> None:
        self.type = type_

    def open(self, context: Any) -> None:
        self.context = context

    def process_element(self, value: Any, ctx: Any) -> Any:
        counts = self.context.get_state(sw.ValueStateDescriptor("counts", self.type))
        others = self.context.get_map_state(sw.MapStateDescriptor("others", int, key_type=str))
        count = counts.value() or self.type(0)
        count.n += 1
        counts.update(count)
        others.put(value, (others.get(value) or 0) + 1)
        yield count, others.get(value)


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_a_state_that_some_subtasks_have_not_asked_for_is_restored_at_any_parallelism(backend: str) -> None:
    @dataclass
    class Count:
        n: int

    old = Count

    @dataclass
    class Count:  # type: ignore[no-redef]
        n: int
        note: str = "-"

    words = [f"w{i}" for i in range(8)]
    # One has its state in a bucket of RocksDB.
    keys = [*words, "x" * 5000]

    def run(type_: Any, some: list[str], parallelism: int, restored: Any = None) -> tuple[list[Any], Any]:
        def step(stream: Any) -> Any:
            return stream.key_by(lambda word: word).process(AskingLate(type_)).uid("counts")

        options = {"parallelism": parallelism, "state_backend": backend, "restored": restored}
        with OperatorHarness(step, **options) as harness:
            return [found for word in some for found in harness.process(word)], harness.snapshot()

    _, taken = run(old, keys, 2)
    first = next(word for word in words if subtask_for_key_group(key_group(word, 128), 2, 128) == 0)
    assert run(Count, [first], 2, taken)[0] == [(Count(2, "-"), 2)]
    for through in (1, 2, 3):
        _, mixed = run(Count, [first], 2, taken)
        _, unclaimed = run(Count, [], through, mixed)
        found, taken_again = run(Count, keys, 3, unclaimed)
        assert found == [(Count(3, "-"), 3) if key == first else (Count(2, "-"), 2) for key in keys]
        found, _ = run(Count, keys, 1, taken_again)
        assert found == [(Count(4, "-"), 4) if key == first else (Count(3, "-"), 3) for key in keys]
