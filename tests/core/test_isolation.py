"""Which values cannot be changed, which belong to their caller alone, and which have to be copied."""

from __future__ import annotations

import json
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, ClassVar, Literal, NamedTuple, NewType, Optional
from uuid import UUID
from weakref import WeakSet, WeakValueDictionary, ref

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import TypeAliasType

from sluiceway import isolation
from sluiceway.errors import FunctionContractError
from sluiceway.isolation import (
    all_unchangeable,
    copied,
    extend_isolated,
    isolated,
    isolated_all,
    separated,
    share_changeable,
    unchangeable,
    unchangeable_type,
)
from sluiceway.operators.escape_analysis import (
    attributes_read,
    changes_nothing,
    keeps_nothing,
    shares_attributes,
    yields_unchanged,
)


class Colour(Enum):
    RED = 1


class Plain:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.content == self.content

    __hash__ = object.__hash__


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and other.content == self.content

    __hash__ = None  # type: ignore[assignment]


class Slots:
    __slots__ = ("content",)


@dataclass
class Open:
    content: Any


@dataclass(frozen=True)
class Frozen:
    content: Any


class WithAttributes(Frozen):
    pass


@dataclass(frozen=True)
class FrozenNumber:
    number: int


class Named(NamedTuple):
    number: int
    content: Any


class NamedWithAttributes(Named):
    pass


class NamedBehindOne(NamedWithAttributes):
    __slots__ = ()


class NamedNumbers(NamedTuple):
    one: int
    other: float


class Struct(msgspec.Struct):
    content: Any


class FrozenStruct(msgspec.Struct, frozen=True):
    content: Any


Old = namedtuple("Old", "a b")

UNCHANGEABLE = [
    *(
        1,
        2.5,
        True,
        None,
        "x",
        b"x",
        Decimal(1),
        datetime(2026, 1, 1, tzinfo=UTC),
        Colour.RED,
        UUID(int=1),
        PurePath("a"),
        (),
    ),
    *((1, 2), ("a", (1.5, None)), Old(1, "x"), Frozen((1, "x")), Named(1, (2, 3)), frozenset({1}), np.int64(3)),
    *(FrozenStruct(1), pa.table({"a": [1]}), range(3), len, Plain),
]
CHANGEABLE = [
    *(
        [1],
        {},
        {1},
        (1, [2]),
        Old(1, (2, [])),
        Plain(1),
        Slotted(1),
        Open(1),
        Frozen([1]),
        Named(1, {}),
        bytearray(),
    ),
    *(Struct(1), FrozenStruct([1]), np.array([1]), {"a": {"b": [1]}}, [(1, Plain([2]))]),
    *(WithAttributes(1), NamedWithAttributes(1, 2), NamedBehindOne(1, 2)),
    np.zeros(1, [("a", "i8")])[0],
]


@pytest.mark.parametrize("value", UNCHANGEABLE, ids=lambda value: type(value).__name__)
def test_what_cannot_be_changed_is_not_copied(value: Any) -> None:
    assert unchangeable(value)
    assert all_unchangeable([1, value])
    assert copied(value) is value
    assert isolated(value) is value


@pytest.mark.parametrize("value", CHANGEABLE, ids=lambda value: type(value).__name__)
def test_what_can_be_changed_is_copied_if_somebody_else_has_it(value: Any) -> None:
    assert not unchangeable(value)
    assert not all_unchangeable([1, value])
    for copy in (copied(value), isolated(value)):
        assert copy is not value
        assert type(copy) is type(value)
        assert np.array_equal(copy, value) if isinstance(value, np.ndarray) else copy == value


FRESH: list[Callable[[], Any]] = [
    lambda: [1, [2]],
    lambda: {"a": {"b": [1]}},
    lambda: {1, 2},
    lambda: (1, [2]),
    lambda: Plain([1]),
    lambda: Slotted([1]),
    lambda: Open({"a": 1}),
    lambda: Frozen([1]),
    lambda: Named(1, [2]),
    lambda: Struct([1]),
    lambda: FrozenStruct([1]),
]


@pytest.mark.parametrize("make", FRESH)
def test_what_nobody_else_has_is_not_copied(make: Callable[[], Any]) -> None:
    value = make()
    assert isolated(value) is value
    returned = [make()]
    before = id(returned[0])
    out: list[Any] = []
    extend_isolated(out, returned)
    assert id(out[0]) == before


@pytest.mark.parametrize("make", FRESH)
def test_a_part_that_somebody_else_has_is_copied(make: Callable[[], Any]) -> None:
    kept = make()
    for around in ([kept], {"a": kept}, (1, kept), Plain(kept), Frozen(kept), Named(1, kept), Struct(kept)):
        value = around
        assert isolated(value) is not value
        out: list[Any] = []
        returned = [value]
        del value
        extend_isolated(out, returned)
        assert copied(around) == out[0]


@pytest.mark.parametrize("around", [lambda plain: plain, lambda plain: [plain], lambda plain: (1, plain)])
def test_what_a_weak_collection_has_is_copied(around: Callable[[Any], Any]) -> None:
    seen: WeakSet[Plain] = WeakSet()
    by_name: WeakValueDictionary[str, Plain] = WeakValueDictionary()
    value = around(Plain([1]))
    plain = value if isinstance(value, Plain) else value[-1]
    parent = ref(plain)
    del plain
    assert isolated(value) is value, "a plain reference, as of a part to what it is in, does not count"
    seen.add(parent())  # type: ignore[arg-type]
    assert isolated(value) is not value
    seen.clear()
    by_name["a"] = parent()  # type: ignore[assignment]
    assert isolated(value) is not value


def test_what_a_weak_collection_has_and_cannot_be_copied_is_passed_on() -> None:
    value = Plain(threading.Lock())
    seen = WeakSet([value])
    assert isolated(value) is value
    assert len(seen) == 1


def test_a_list_that_its_function_keeps_is_nobody_elses() -> None:
    kept = [{"n": 1}]

    def buffer() -> list[dict[str, int]]:
        return kept

    out: list[Any] = []
    returned = buffer()
    extend_isolated(out, returned)
    kept[0]["n"] = 2
    assert out == [{"n": 1}]


def test_counts_that_would_take_a_shared_list_for_a_fresh_one_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Python 3.14, where a call adds no reference."""
    assert isolation._counts_are_exact()
    monkeypatch.setattr(isolation, "_ALONE_WHILE_READ", isolation._ALONE_WHILE_READ + 1)
    assert not isolation._counts_are_exact()


def test_a_generator_gives_each_record_as_it_is_then() -> None:
    def count() -> Iterator[dict[str, int]]:
        row = {"n": 0}
        for n in range(3):
            row["n"] = n
            yield row

    out: list[Any] = []
    returned = count()
    extend_isolated(out, returned)
    assert out == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_one_object_twice_becomes_two() -> None:
    def twice() -> list[dict[str, int]]:
        one = {"n": 1}
        return [one, one]

    for take in (separated, isolated_all):
        out = take(twice())
        assert out == [{"n": 1}, {"n": 1}]
        assert out[0] is not out[1]
    order = Plain(1)
    pairs = separated([(order, 1), (order, 2)])
    assert pairs[0][0] is not pairs[1][0]


@pytest.mark.parametrize("shared", [Plain(1), (1, Plain(1)), Frozen(Plain(1)), iter([1])], ids=type)
def test_a_shared_object_in_the_middle_of_a_batch_is_copied(shared: Any) -> None:
    values = [("a", 1), ("b", shared), ("b", shared), ("c", 2)]
    out = separated(values)
    assert [first for first, _ in out] == ["a", "b", "b", "c"]
    assert out[1][1] is not shared
    assert out[2][1] is not shared
    assert out[1][1] is not out[2][1]


@pytest.mark.parametrize("shared", [Plain(1), [1], {}, (1, [2]), Frozen([1]), iter([1])], ids=type)
def test_an_object_in_two_records_is_found(shared: Any) -> None:
    assert share_changeable([shared, 1, shared])
    assert share_changeable([("a", shared), ("b", [shared])])
    assert not share_changeable([("a", shared), ("b", [1]), ("b", [1])])


@pytest.mark.parametrize("shared", [1, "a", (1, ("b",)), Frozen(1), Colour.RED, Plain], ids=type)
def test_what_cannot_be_changed_may_be_in_two_records(shared: Any) -> None:
    assert not share_changeable([shared, shared, ("a", shared), [shared], {"a": shared}])


def test_tuples_that_hold_nothing_changeable_are_not_looked_at_one_by_one() -> None:
    for values in (
        [("a", 1), ("b", None)],
        [("a", (1, Colour.RED)), 3, ("b", Frozen(1))],
        [Old("a", UUID(int=1)), ("b", datetime(2026, 1, 1, tzinfo=UTC))],
    ):
        assert separated(values) is values


@pytest.mark.parametrize("shared", [Plain(1), Slotted(1), Slots(), [1], Frozen(Plain(1))], ids=type)
def test_a_shared_record_between_tuples_is_copied(shared: Any) -> None:
    out = separated([("a", 1), shared, shared, ("c", 2)])
    assert out[1] is not shared
    assert out[1] is not out[2]


def test_tuples_may_hold_what_refuses_to_be_hashed() -> None:
    values = [("a", memoryview(bytearray(1)))]
    assert separated(values) == values


def test_what_cannot_be_copied_is_said() -> None:
    lock = [threading.Lock()]
    same = isolated(lock)
    assert same is lock, "nobody else has it"
    del same
    kept = lock
    with pytest.raises(FunctionContractError, match=r"type list cannot be copied .*lock.*object-reuse"):
        isolated(kept)


def test_deep_nesting_is_no_obstacle_where_nothing_is_shared() -> None:
    def nest() -> list[Any]:
        value: list[Any] = []
        for _ in range(100_000):
            value = [value]
        return value

    value = nest()
    assert isolated(value) is value
    while value:  # without recursion in the end, either
        value = value[0]


@pytest.mark.parametrize(
    "hint",
    [
        *(int, str, bytes, tuple[str, int], tuple[int, ...], Optional[int], int | None, Literal["a"]),  # noqa: UP045
        *(NamedNumbers, FrozenNumber, Colour, frozenset[str], UUID, tuple[()]),
        *(NewType("Name", str), TypeAliasType("Name", str), tuple[TypeAliasType("Name", str), int]),
    ],
    ids=repr,
)
def test_hints_that_promise(hint: Any) -> None:
    assert unchangeable_type(hint)


@pytest.mark.parametrize(
    "hint",
    [
        None,
        Any,
        object,
        list[int],
        dict,
        tuple,
        tuple[str, list[int]],
        Plain,
        Open,
        Frozen,
        Named,
        "x",
        3,
        int | list[int],
        TypeAliasType("Names", list[str]),
    ],
)
def test_hints_that_do_not(hint: Any) -> None:
    assert not unchangeable_type(hint)


KEPT: list[Any] = []
LIMIT = 3
MARK = "a"
SET_LATER = None
FIND = np.array([1, 5]).searchsorted


def closed(value: int) -> int:
    return min(value, LIMIT)


def with_methods_in_variables(line: str) -> list[Any]:
    found: list[Any] = []
    add = found.append
    size = len
    clean = lambda word: word.strip()  # noqa: E731
    for word in line.split():
        add((clean(word), size(word)))
    return found


def calls_a_part_with_its_own(value: Any) -> Any:
    size = len
    part = value[0]
    return part(size)


def calls_a_part_under_the_name_of_its_own(value: Any) -> Any:
    step: Any = len
    step, rest = value
    return step(rest)


def calls_a_part_set_with_its_own(value: Any) -> Any:
    step, size = value.step, len
    return step(size)


def calls_a_method_of_a_base(value: Any) -> Any:
    return super(type(value), value).to_row()


def keeps_in_the_class(value: Any) -> Any:
    type(value).last = value
    return value


def calls_a_part(pair: Any) -> Any:
    step, value = pair
    return step(value)


def calls_closed(value: int) -> list[int]:
    return [closed(n) for n in range(value)]


def keeps(value: Any) -> Any:
    KEPT.append(value)
    return value


def assigns(value: Any) -> Any:
    global LAST
    LAST = value
    return value


def with_default(value: Any, seen: list[Any] = []) -> Any:  # noqa: B006
    seen.append(value)
    return seen


def counting() -> Callable[[Any], Any]:
    seen: list[Any] = []
    return lambda value: seen.append(value) or seen


def keeps_in_itself(value: Any) -> Any:
    if not hasattr(keeps_in_itself, "seen"):
        keeps_in_itself.seen = []  # type: ignore[attr-defined]
    keeps_in_itself.seen.append(value)  # type: ignore[attr-defined]
    return keeps_in_itself.seen  # type: ignore[attr-defined]


def put_on(function: Any, value: Any) -> Any:
    function.last, before = value, getattr(function, "last", None)
    return before


class Reading(NamedTuple):
    meter: str
    values: list[int]


@dataclass
class Total:
    meter: str
    values: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mean:
    meter: str
    mean: float = 0.0


@dataclass
class Registered:
    meter: str

    def __post_init__(self) -> None:
        KEPT.append(self)


@dataclass
class Kept:
    meter: str
    seen: list[Any] = field(default_factory=lambda: KEPT)


@dataclass(frozen=True)
class Calling:
    step: Any


@dataclass(frozen=True)
class Setting:
    limit: int
    seen: ClassVar[list[Any]] = []

    @property
    def kept(self) -> list[Any]:
        return KEPT


class Shelf:
    seen: ClassVar[list[Any]] = []


STEPS = (closed, keeps)
SETTINGS = (Setting(1), Setting(2))
VARIABLE = ContextVar("VARIABLE", default=KEPT)
CALLING = Calling(keeps)
Rows = Enum("Rows", {"FIRST": [1]})
ROW = Rows.FIRST


class Planet(Enum):
    EARTH = 1

    def __init__(self, moons: int) -> None:
        self.moons = list(range(moons))


EARTH = Planet.EARTH


class Registry:
    seen: ClassVar[list[Any]] = []

    def __init__(self, value: Any) -> None:
        self.seen.append(value)


class Doubles:
    def __init__(self) -> None:
        self.row: dict[str, int] = {}

    def double(self, value: int) -> dict[str, int]:
        return {"n": 2 * value}

    def into_its_row(self, value: int) -> dict[str, int]:
        self.row["n"] = 2 * value
        return self.row

    def through_a_closure(self, value: int) -> Any:
        return [self.row for _ in range(value)] + (lambda: [self])()


class Numbered(tuple[int, ...]):
    def __new__(cls, value: Any) -> Numbered:
        KEPT.append(value)
        return super().__new__(cls, (1,))


@dataclass
class WithProperty:
    meter: str

    def __setattr__(self, name: str, value: Any) -> None:
        KEPT.append(self)


class KeepsWhatIsSet:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return 0

    def __set__(self, instance: Any, value: Any) -> None:
        KEPT.append(value)


@dataclass
class WithDescriptor:
    meter: Any = KeepsWhatIsSet()


class HasProperty:
    meter = property(lambda self: KEPT, lambda self, value: KEPT.append(value))


@dataclass
class WithPropertyOfBase(HasProperty):
    meter: Any  # type: ignore[assignment]


class Asking(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        KEPT.append(instance)
        return True


class Asked(metaclass=Asking):
    pass


def put_into(cls: type[Registry], value: Any) -> None:
    cls.seen.append(value)


@pytest.mark.parametrize(
    "function",
    [
        *(
            closed,
            calls_closed,
            with_methods_in_variables,
            str.lower,
            int,
            len,
            lambda line: [(word, 1) for word in line.split()],
        ),
        *(lambda v: SETTINGS[v].limit, lambda v: (v.count, Shelf(), MARK)),
        *(Reading, Total, Mean, lambda v: Reading(v, [v]), lambda v: Total(v[0], v), lambda v: Mean(v).mean),
        *(lambda v, limit=(1, 2.5): v[: limit[0]], lambda v: isinstance(v, Registry)),
        lambda v: isinstance(v[0], (Registry, Total)) and not isinstance(len(v), Mean),
        lambda v: [word.lower() for word in v.get("line").split()],
        Doubles().double,
    ],
)
def test_functions_that_keep_nothing(function: Any) -> None:
    assert keeps_nothing(function)


@pytest.mark.parametrize(
    "function",
    [
        *(keeps, assigns, with_default, counting(), KEPT.append, Plain, lambda v: keeps(v), lambda v: globals()),
        *(lambda v: [keeps(x) for x in v], lambda v: msgspec.json.decode(v)),
        *(WithDescriptor, WithPropertyOfBase),
        *(Registered, Kept, Registry, Numbered, WithProperty, lambda v: Registry(v), lambda v: Registered(v)),
        *(
            lambda v: Registry.seen.append(v),
            lambda v: put_into(Registry, v),
            lambda v: [Registry][0].seen.append(v),
        ),
        lambda v: setattr(Registry, "last", v) or isinstance(v, Registry),
        lambda v: (lambda cls: cls.seen.append(v))(Registry),
        lambda v: isinstance(put_into(Registry, v), Registry),
        lambda v: isinstance(v, Asked),
        *(lambda v: v.to_row(), Doubles().into_its_row, Doubles().through_a_closure, Registry(1).__init__),
        lambda v: [part.to_row() for part in v],
        *(keeps_in_itself, lambda v: keeps_in_itself(v), lambda v: put_on(closed, v)),
        *(np.array([1, 5]).searchsorted, lambda v: FIND(v)),
        *(
            lambda v, add=KEPT.append: add(v) or v,
            lambda v, *, make=Registry: make(v),
            lambda v, by=json: by.loads(v),
        ),
        *(lambda v: [step(v) for step in STEPS], lambda v, steps=STEPS: steps[0](v), lambda v: CALLING.step(v)),
        *(lambda v: ROW.value, lambda v: EARTH.moons),
        *(
            lambda v: SETTINGS[v].kept,
            lambda v: SETTINGS[v].seen,
            lambda v: Shelf().seen,
            lambda v: VARIABLE.get(),
        ),
        lambda v: SET_LATER,
        *(keeps_in_the_class, lambda v: getattr(v, "row")),  # noqa: B009
        *(calls_a_part, lambda v: v[0](v[1]), lambda v: v["step"](*v["values"]), lambda v: type(v)(v)),
        *(calls_a_part_with_its_own, calls_a_part_under_the_name_of_its_own),
        *(calls_a_part_set_with_its_own, calls_a_method_of_a_base),
    ],
)
def test_functions_that_may_keep_something(function: Any) -> None:
    assert not keeps_nothing(function)


def pairs(line: str) -> Iterator[Any]:
    for word in line.split():
        yield word, closed(len(word))


def reuses_a_row(line: str) -> Iterator[Any]:
    row: dict[str, str] = {}
    for word in line.split():
        row["word"] = word
        yield row


def reuses_a_list(line: str) -> Iterator[Any]:
    row: list[str] = []
    add = row.append
    for word in line.split():
        add(word)
        yield row


def put(row: Any, word: str) -> Any:
    row.update(word=word)
    return row


@pytest.mark.parametrize(
    "function",
    [
        *(pairs, lambda line: pairs(line), lambda line: ((word, 1) for word in line.split())),
        *(lambda line: (row["word"] for row in line), lambda line: (each for each in pairs(line))),
    ],
)
def test_generators_that_change_nothing_between_two_results(function: Any) -> None:
    assert yields_unchanged(function)


@pytest.mark.parametrize(
    "function",
    [
        *(reuses_a_row, reuses_a_list, lambda line: reuses_a_row(line)),
        lambda line: (put({}, word) for word in line),
        lambda line: (super(dict, row).update(n=1) or row for row in line),
        *(lambda lines: (line.append(1) or line for line in lines), lambda made: made, len, KEPT.append),
    ],
)
def test_generators_that_may_change_something_between_two_results(function: Any) -> None:
    assert not yields_unchanged(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a[0], a[1] + b[1]),
        lambda a, b: a + b,
        lambda a, b: a if a.n > b.n else b,
        lambda a, b: max(a, b),
    ],
)
def test_functions_that_change_nothing(function: Any) -> None:
    assert changes_nothing(function)


@pytest.mark.parametrize(
    ("cls", "name", "shared"),
    [
        *((Total, "values", False), (Mean, "mean", False), (Reading, "values", False), (Struct, "content", False)),
        *((Open, "absent", False), (datetime, "year", False), (dict, "value", False)),
        *((Colour, "value", False), (Rows, "value", True), (Planet, "value", False), (Planet, "moons", True)),
        *((Registry, "seen", True), (type("Sub", (Registry,), {}), "seen", True)),
        (type("Computed", (), {"row": property(lambda self: KEPT)}), "row", True),
    ],
)
def test_attributes_that_objects_of_a_class_may_share(cls: type, name: str, shared: bool) -> None:
    assert shares_attributes(cls, ["absent", name]) is shared


def test_the_attributes_that_a_function_reads() -> None:
    assert attributes_read(lambda v: [part.inner for part in v.parts] + v.split()) == {"inner", "parts"}
    assert attributes_read(Doubles().into_its_row) == {"row"}
    assert attributes_read(lambda v: super(type(v), v).inner) == {"inner"}
    assert attributes_read(len) == attributes_read(lambda v: v["n"]) == frozenset()


def adds_in_place(a: Any, b: Any) -> Any:
    a += b
    return a


def sets_item(a: Any, b: Any) -> Any:
    a["n"] = b["n"]
    return a


def sets_attribute(a: Any, b: Any) -> Any:
    a.n = b.n
    return a


@pytest.mark.parametrize(
    "function",
    [
        adds_in_place,
        sets_item,
        sets_attribute,
        lambda a, b: a.update(b) or a,
        lambda a, b: keeps(a),
        lambda a, b, add=adds_in_place: add(a, b),
        lambda a, b: a["add"](b),
        counting(),
        len,
    ],
)
def test_functions_that_may_change_something(function: Any) -> None:
    assert not changes_nothing(function)
