"""Records of classes, and of what libraries have, through the default serializer of edges."""

import datetime as dt
import enum
import functools
import pickle
import uuid
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import SerializationError
from sluiceway.serializers import content, layouts
from sluiceway.serializers.content import ContentSerializer

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
MANY = 40  # enough for columns


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Order:
    user: str
    amount: int
    price: float | None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = getattr(self, "seen", 0) + 1


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Fixed:
    at: dt.datetime
    id: uuid.UUID
    total: Decimal
    color: Color


@dataclass
class Outer:
    name: str
    order: Order
    points: list[Point]


class Pair(NamedTuple):
    a: Any
    b: Any = 1


Old = namedtuple("Old", "a b")


class Packet(msgspec.Struct, frozen=True):
    id: int
    body: bytes


class Sheet:
    """Nothing but attributes."""

    def __init__(self, name: str, cells: Any) -> None:
        self.name = name
        self.cells = cells

    def __eq__(self, other: object) -> bool:
        return type(other) is Sheet and vars(other) == vars(self)


class Careful(Sheet):
    """Has its own say in how it is copied."""

    def __reduce__(self) -> Any:
        return Careful, (self.name, self.cells)

    __eq__ = Sheet.__eq__


class Text(str):
    """A string, but not exactly one."""


@dataclass
class Tree:
    name: str
    children: list[Any] = field(default_factory=list)
    extra: Any = None


def encoded(values: list[Any]) -> bytes:
    data = ContentSerializer().dumps(values)
    assert data[0] in (2, 0x80)
    return data


def there_and_back(values: list[Any], columns: bool = True) -> list[Any]:
    data = encoded(values)
    assert (data[0] == 2) is columns, "taken apart" if data[0] == 2 else "pickled"
    back: list[Any] = ContentSerializer().loads(data)
    assert type(back) is list
    return back


def exactly(value: Any) -> Any:
    """A value with all the types in it, and what equality leaves out of account."""
    if isinstance(value, (tuple, list)):
        return type(value), [exactly(part) for part in value]
    if isinstance(value, dict):
        return dict, [(exactly(key), exactly(part)) for key, part in value.items()]
    if type(value).__module__ == __name__ and not isinstance(value, (enum.Enum, Text)):
        if hasattr(value, "__dict__"):
            return type(value), exactly(vars(value))
        names = getattr(value, "__struct_fields__", None) or value.__slots__
        return type(value), [exactly(getattr(value, name)) for name in names]
    if isinstance(value, uuid.UUID):
        return type(value), value.int, value.is_safe
    if isinstance(value, (dt.datetime, dt.time)):
        return type(value), repr(value), value.fold
    return type(value), repr(value)


MAKERS: dict[str, Any] = {
    "a dataclass": lambda i: Order(f"user {i}", i, i / 2, ["a"] * (i % 3)),
    "a dataclass of slots": lambda i: Point(i, -0.0),
    "a dataclass of dates": lambda i: Fixed(NOON, uuid.UUID(int=i), Decimal(i) / 8, Color.RED),
    "a nested dataclass": lambda i: Outer(str(i), Order("u", i), [Point(j) for j in range(i % 3)]),
    "a NamedTuple": lambda i: Pair(i, str(i)),
    "a namedtuple": lambda i: Old(i, None),
    "a struct": lambda i: Packet(i, b"\x00\xff"),
    "an object": lambda i: Sheet("s", i),
    "a datetime": lambda i: NOON + dt.timedelta(microseconds=i),
    "a datetime without a zone": lambda i: NOON.replace(tzinfo=None, microsecond=i),
    "a date": lambda i: dt.date(2026, 1, 1) + dt.timedelta(days=i),
    "a time": lambda i: dt.time(1, 2, 3, i),
    "a duration": lambda i: dt.timedelta(days=-i, microseconds=i),
    "a decimal": lambda i: Decimal(i).scaleb(-i),
    "a UUID": lambda i: uuid.UUID(int=i),
    "a tuple with a dataclass": lambda i: (str(i), Order("u", i)),
    "a list of dataclasses": lambda i: [Point(j) for j in range(1, i)] or [Point(0)],
    "a tuple in a tuple": lambda i: ("a", (i, Point(i))),
}
PICKLED: dict[str, Any] = {
    "an enum": lambda i: Color.BLUE if i % 2 else Color.RED,
    "a datetime with a zone": lambda i: NOON.astimezone(ZoneInfo("Europe/Berlin")),
    "a datetime with a fixed zone": lambda i: NOON.astimezone(dt.timezone(dt.timedelta(0), "Zulu")),
    "a datetime that comes twice": lambda i: NOON.replace(tzinfo=None, fold=1),
    "an object with its own say": lambda i: Careful("s", i),
    "a UUID that is known to be safe": lambda i: uuid.UUID(int=i, is_safe=uuid.SafeUUID.safe),
    "a dict": lambda i: {"user": i, "tags": ["a"]},
    "an empty tuple": lambda i: ((), Point(1))[:0],
    "an empty dataclass": lambda i: dataclass_without_fields(),
    "a decimal of more than one kind": lambda i: Decimal("1") if i % 2 else 1,
    "an int subclass": lambda i: Text("a"),
}


@dataclass
class dataclass_without_fields:
    pass


@pytest.mark.parametrize("what", MAKERS)
def test_it_is_taken_apart_and_comes_back_as_it_was(what: str) -> None:
    values = [MAKERS[what](i) for i in range(MANY)]
    back = there_and_back(values)
    assert exactly(back) == exactly(values)
    assert back == values


@pytest.mark.parametrize("what", PICKLED)
def test_it_is_pickled_and_comes_back_as_it_was(what: str) -> None:
    values = [PICKLED[what](i) for i in range(MANY)]
    assert exactly(there_and_back(values, columns=False)) == exactly(values)


@pytest.mark.parametrize("what", MAKERS)
@pytest.mark.parametrize("odd", [None, 1, "a", Text("a"), Point(7), Pair(1), ("a", 1), [], {}, Order("u", True)])
def test_one_odd_record_changes_nothing(what: str, odd: Any) -> None:
    values = [MAKERS[what](i) for i in range(MANY)]
    for place in (0, MANY // 2, MANY):
        mixed = [*values[:place], odd, *values[place:]]
        assert exactly(ContentSerializer().loads(encoded(mixed))) == exactly(mixed)


@pytest.mark.parametrize("what", [*MAKERS, *PICKLED])
def test_few_records_come_back_as_they_were(what: str) -> None:
    values = [{**MAKERS, **PICKLED}[what](i) for i in range(3)]
    assert exactly(there_and_back(values, columns=False)) == exactly(values)


def test_nothing_is_made_anew() -> None:
    assert {order.seen for order in there_and_back([Order("u", i) for i in range(MANY)])} == {1}


def test_attributes_besides_the_fields_are_kept() -> None:
    orders = [Order("u", i) for i in range(MANY)]
    orders[5].note = "by hand"  # type: ignore[attr-defined]
    assert vars(there_and_back(orders, columns=False)[5]) == vars(orders[5])
    for order in orders:
        order.note = "each"  # type: ignore[attr-defined]
    assert [vars(order) for order in there_and_back(orders)] == [vars(order) for order in orders]


def test_a_missing_attribute_stays_missing() -> None:
    orders = [Order("u", i, 1.0) for i in range(MANY)]
    del orders[3].price  # the class has a default for it
    orders[3].note = 1  # type: ignore[attr-defined]
    assert vars(there_and_back(orders, columns=False)[3]) == vars(orders[3])


@pytest.mark.parametrize(
    "odd", [True, 1.0, 2**80, None, Text("x"), NOON, Point(1), [Point(1)], (1, Point(2)), {"a": Point(1)}]
)
def test_a_field_of_another_type_than_declared_is_kept(odd: Any) -> None:
    for values in (
        [Order("u", i) for i in range(MANY)] + [Order(odd, odd)],
        [Point(odd, odd)] + [Point(i) for i in range(MANY)],
        [Pair(i, odd if i == 9 else i) for i in range(MANY)],
    ):
        assert exactly(ContentSerializer().loads(encoded(values))) == exactly(values)


def test_a_record_that_leads_back_to_itself_does_so_still() -> None:
    trees = [Tree(str(i)) for i in range(MANY)]
    for tree in trees:
        tree.extra = tree
    assert all(tree.extra is tree for tree in there_and_back(trees, columns=False))
    for tree in trees:
        tree.extra = {"parent": tree}
    assert all(tree.extra["parent"] is tree for tree in there_and_back(trees, columns=False))
    for tree in trees:
        tree.extra, tree.children = None, [Tree("leaf", extra=tree)]
    assert all(tree.children[0].extra is tree for tree in there_and_back(trees, columns=False))


def test_records_of_a_few_classes_are_sorted_by_class_and_back() -> None:
    def one(i: int) -> Any:
        return [Order("u", i), None, Point(i), Pair(i, Point(i)), "text", Packet(i, b"")][i % 7 % 6]

    for values in (
        [Order("u", i) if i % 3 else Point(i) for i in range(8 * MANY)],
        [Order("u", i) if i % 3 else None for i in range(8 * MANY)],
        [Order("u", i) for i in range(8 * MANY)] + [1],
        [one(i) for i in range(8 * MANY)],
        [(i, Point(i) if i % 2 else None) for i in range(8 * MANY)],
        [Pair(i, [None, Point(i), Order("u", i)][i % 3]) for i in range(8 * MANY)],
    ):
        assert exactly(there_and_back(values)) == exactly(values)


def test_records_of_many_classes_are_pickled() -> None:
    cases: list[Any] = [Point, Pair, Packet, Decimal, dt.timedelta, lambda i: Sheet("s", i), lambda i: Old(i, i)]
    cases += [lambda i: uuid.UUID(int=i), lambda i: NOON]
    packets = [Packet(i, b"") if make is Packet else make(i) for i in range(MANY) for make in cases]
    assert exactly(there_and_back(packets, columns=False)) == exactly(packets)
    values = [value for value in packets if type(value) is not Old]
    assert exactly(there_and_back(values)) == exactly(values)


def test_a_way_back_that_only_some_records_have_is_kept() -> None:
    for first in (None, 1, "a", {}):
        pairs = [Sheet(str(i), first if i == 0 else None) for i in range(MANY)]
        for pair in pairs[1:]:
            pair.cells = {"parent": pair}
        assert all(pair.cells["parent"] is pair for pair in there_and_back(pairs, columns=False)[1:])
        for pair in pairs[1:]:
            pair.cells = pair
        assert all(pair.cells is pair for pair in there_and_back(pairs, columns=False)[1:])


def test_trees_are_left_to_pickle() -> None:
    trees = [Tree("root", [Tree("leaf")]) for _ in range(MANY)]
    assert there_and_back(trees, columns=False) == trees
    deep: Any = Point(1)
    for _ in range(9):
        deep = [deep]
    assert there_and_back([deep] * MANY, columns=False) == [deep] * MANY


def test_a_text_that_is_called_like_the_class_does_no_harm() -> None:
    trees = [Tree("Tree", extra={"Tree": i}) for i in range(MANY)]
    assert there_and_back(trees, columns=False) == trees
    trees = [Tree("a Tree", extra={"a": "a Tree"}) for i in range(MANY)]
    assert there_and_back(trees) == trees


def test_lists_without_end_are_left_to_pickle() -> None:
    endless: list[Any] = [Point(1)]
    endless.insert(0, endless)
    back = there_and_back([endless] * MANY, columns=False)
    assert back[3][0] is back[3]


ZONES = st.sampled_from([None, dt.UTC, ZoneInfo("Europe/Berlin")])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.datetimes(timezones=ZONES),
    st.timedeltas(),
    st.dates(),
    st.times(),
    st.uuids(),
    st.decimals(),
    st.sampled_from(Color),
    st.builds(Text, st.text(max_size=2)),
)
FIELDS = st.one_of(
    LEAVES, st.builds(Point, LEAVES, LEAVES), st.lists(LEAVES, max_size=2), st.tuples(LEAVES, LEAVES)
)
RECORDS = st.sampled_from([Pair, Point, Order, Old, Sheet, Packet]).flatmap(
    lambda cls: st.lists(st.builds(cls, FIELDS, FIELDS), min_size=1, max_size=6)
)


@given(records=RECORDS, odd=st.lists(FIELDS, max_size=1), wrap=st.sampled_from(["", "tuple", "list"]))
@settings(max_examples=80, deadline=None)
def test_any_fields_are_kept(records: list[Any], odd: list[Any], wrap: str) -> None:
    values = records * MANY + odd
    if wrap:
        values = [(1, value) if wrap == "tuple" else [value, value] for value in values]
    assert exactly(ContentSerializer().loads(encoded(values))) == exactly(values)


# ---- what is left to pickle -----------------------------------------------------------------------------------


def test_classes_that_are_copied_in_a_way_of_their_own_are_left_alone() -> None:
    class State:
        def __getstate__(self) -> Any:
            return {}

    class New:
        def __new__(cls, *args: Any) -> Any:
            return object.__new__(cls)

    class Slots:
        __slots__ = ("a",)

    class Number(int):
        pass

    class KeywordOnly(msgspec.Struct, kw_only=True):
        a: int

    class Both(Pair):
        pass

    class Reduced:
        def __reduce_ex__(self, protocol: Any) -> Any:
            return Reduced, ()

    class Elsewhere:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            return {"a": 1}

    @dataclass(slots=True)
    class Patched:
        a: int

    Patched.a = property(lambda self: 1)  # type: ignore[assignment, misc]

    for cls in (
        State,
        Reduced,
        Elsewhere,
        Patched,
        New,
        Slots,
        Number,
        KeywordOnly,
        Both,
        Careful,
        Text,
        dict,
        type,
        functools.partial,
        Exception,
    ):
        assert layouts.kind_of(cls) is None, cls
        assert layouts.why_not(cls)
    for cls in (Order, Point, Packet, Pair, Old, Sheet):
        assert layouts.kind_of(cls) is not None, cls
        assert layouts.why_not(cls) is None


def test_properties_are_not_set() -> None:
    class Guarded:
        @property
        def a(self) -> int:
            return 1

        @a.setter
        def a(self, value: int) -> None:
            raise AssertionError

    record = Guarded()
    record.__dict__["a"] = 5
    assert layouts.names_of("attributes", record) == ()


def test_attributes_without_a_name_are_kept() -> None:
    sheets = [Sheet("a", i) for i in range(MANY)]
    for sheet in sheets:
        vars(sheet)[5] = "five"
    assert vars(there_and_back(sheets, columns=False)[3]) == vars(sheets[3])


def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    with pytest.raises(
        SerializationError, match="a value of type Order cannot be pickled: cannot pickle 'generator'"
    ):
        ContentSerializer().dumps([Order("u", i, (x for x in ())) for i in range(MANY)])  # type: ignore[arg-type]


def test_a_class_of_a_function_travels_by_value() -> None:
    @dataclass
    class Local:
        a: int

    back = there_and_back([Local(i) for i in range(MANY)])
    assert back[3].a == 3
    assert type(back[3]).__qualname__ == Local.__qualname__


def test_the_shape_is_pickled_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = ContentSerializer(), ContentSerializer()
    orders = [Order("u", i) for i in range(MANY)]
    assert reader.loads(writer.dumps(orders)) == orders
    heads = [*writer._shapes.values()]
    assert len(heads) == 1
    loads = content.PICKLE.loads
    monkeypatch.setattr(
        content.PICKLE, "loads", lambda data: loads(data) if data != heads[0] else pytest.fail("again")
    )
    assert reader.loads(writer.dumps(orders)) == orders


def test_broken_columns_are_refused() -> None:
    data = encoded([Order("u", i) for i in range(MANY)])
    for broken in (data[:3], data[:20], data[:-3], data[:1] + b"\xff\xff\xff\xff" + data[5:]):
        with pytest.raises(SerializationError):
            ContentSerializer().loads(broken)
    body = pickle.dumps([[1]], 5)
    shape = pickle.dumps(("msgpack", dt.date), 5)
    with pytest.raises(SerializationError, match="cannot be read as columns"):
        ContentSerializer().loads(b"\x02" + len(shape).to_bytes(4, "little") + shape + body)


# ---- libraries --------------------------------------------------------------------------------------------------


def test_pydantic_models_come_back_with_what_was_given() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Inner(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        n: int = 1

    class Model(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        name: str
        at: dt.datetime = NOON
        inner: Inner = Inner()

    class Secret(Model):
        _key: int = pydantic.PrivateAttr(default=5)

    class Open(Model):
        model_config = pydantic.ConfigDict(extra="allow")

    def same(one: Any, other: Any) -> bool:
        return type(one) is type(other) and all(
            getattr(one, name) == getattr(other, name)
            for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        )

    back = there_and_back([Inner(n=i) for i in range(MANY)])
    assert [m.n for m in back] == list(range(MANY))
    assert all(m.__pydantic_fields_set__ == {"n"} for m in back)
    for models in (
        [Inner() for _ in range(MANY)],
        [Inner(n=1) if i % 3 else Inner() for i in range(MANY)],
    ):
        assert all(map(same, there_and_back(models), models))
    nested = there_and_back([Model(name=str(i)) for i in range(MANY)])
    assert (nested[3].name, nested[3].at, nested[3].inner.n) == ("3", NOON, 1)
    assert nested[3].model_fields_set == {"name"}
    assert there_and_back([Secret(name="a") for _ in range(MANY)], columns=False)[3]._key == 5
    assert there_and_back([Open(name="a", more=i) for i in range(MANY)], columns=False)[3].more == 3


def test_numpy_arrays_and_scalars_come_back_as_they_were() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    for make in (
        lambda i: np.array([i, i + 0.5, np.nan]),
        lambda i: (np.arange(6).reshape(2, 3) + i).astype(">i2"),
        lambda i: np.array([f"w{i % 9}", "word"]),
        lambda i: np.array([], dtype=np.float32),
        lambda i: np.array([i], dtype="datetime64[ns]"),
        lambda i: (str(i), np.full((2, 2), i, dtype=np.uint8)),
        np.float64, np.float32, np.int64, np.uint8, np.complex64, lambda i: np.bool_(i % 2),
        lambda i: np.datetime64(i, "ms"), lambda i: np.timedelta64(i, "s"),
    ):  # fmt: skip
        values = [make(i) for i in range(MANY)]
        for value, back in zip(values, there_and_back(values), strict=True):
            if isinstance(value, tuple):
                assert value[0] == back[0]
                value, back = value[1], back[1]
            assert type(back) is type(value)
            assert (back.dtype, back.shape) == (value.dtype, value.shape)
            assert back.tobytes() == value.tobytes()
            if type(value) is np.ndarray:
                assert back.flags.owndata, "a record that is kept must not keep its whole batch"
                assert back.flags.writeable
    fixed = np.arange(3)
    fixed.flags.writeable = False
    for odd in (
        [np.zeros(i) for i in range(MANY)],
        [np.zeros(2, dtype=int if i % 2 else float) for i in range(MANY)],
        [np.array(None)] * MANY,
        [np.array(5)] * MANY,
        [np.zeros(10_000)] * MANY,
        [np.zeros(1, dtype=np.dtype("f8", metadata={"unit": "m"}))] * MANY,
        [np.zeros((3, 2)).T] * MANY,
        [np.zeros(1, dtype="i2,i4")] * MANY,
        [fixed] * MANY,
        [np.str_("a" * (i % 3)) for i in range(MANY)],
        [np.ma.masked_array([1, 2], [True, False])] * MANY,
    ):
        back = there_and_back(odd, columns=False)
        assert [(type(a), a.dtype, a.shape) for a in back] == [(type(a), a.dtype, a.shape) for a in odd]


def test_arrow_tables_and_batches_come_back_as_they_were() -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", "z"], "c": pa.array(["q", "q", "r"]).dictionary_encode()})
    table = table.replace_schema_metadata({"from": "here"})
    batch = table.to_batches()[0]
    for value in (table, batch, table.slice(1, 1), batch.slice(0, 0), pa.concat_tables([table, table])):
        for times in (1, MANY):
            back = there_and_back([value] * times)[-1]
            assert type(back) is type(value)
            assert back.equals(value, check_metadata=True)
    big = pa.table({"a": list(range(100_000))})
    assert len(encoded([big.slice(5, 10)])) < 10_000, "a slice is sent, not what it was cut from"
    assert there_and_back([pa.array([1, 2])] * MANY, columns=False)[0].equals(pa.array([1, 2]))
