"""Values to bytes and back."""

import datetime as dt
import enum
import sys
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass, field, make_dataclass
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import CorruptStreamError, SerializationError, UnknownNameError
from sluiceway.serializers import (
    KEY_SERIALIZER,
    MsgspecSerializer,
    PickleSerializer,
    Row,
    Serializer,
    decode_rows,
    encode_rows,
    register_serializer,
    registry,
    serializer_by_name,
    serializer_for,
)
from sluiceway.serializers.schemas import describe

T = TypeVar("T")


class Pair(NamedTuple):
    a: int
    b: str = ""


@dataclass
class Order:
    user: str
    items: list[Pair] = field(default_factory=list)
    paid: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


class SubOrder(Order):
    pass


class Cell(msgspec.Struct):
    row: int
    name: str | None = None


class FrozenCell(msgspec.Struct, frozen=True, array_like=True, tag="cell"):
    row: int
    order: Order


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


UserId = NewType("UserId", str)


def same(left, right):
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(x, y) for (a, x), (b, y) in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, set | frozenset):
        return left == right and Counter(map(type, left)) == Counter(map(type, right))
    if isinstance(left, dt.datetime | dt.time):
        return left == right and left.tzinfo == right.tzinfo and left.fold == right.fold
    if isinstance(left, Order | Point | Cell | FrozenCell):
        names = getattr(left, "__struct_fields__", None) or left.__dataclass_fields__
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, float | Decimal):
        return repr(left) == repr(right)
    return left == right


# ---- everything declared, everything comes back ------------------------------------------------------------

scalars = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers() | st.integers(-(2**63), 2**64 - 1),
    float: st.floats(),
    str: st.text() | st.text(st.characters(categories=["Cs"])),
    bytes: st.binary(max_size=5),
    Decimal: st.decimals(),
    uuid.UUID: st.uuids(),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.timezones()),
    dt.time: st.times(timezones=st.none() | st.just(dt.UTC)),
    dt.timedelta: st.timedeltas(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Pair: st.builds(Pair, st.integers(), st.text(max_size=2)),
    Order: st.builds(
        Order,
        st.text(max_size=2),
        st.lists(st.builds(Pair, st.integers(), st.text(max_size=2)), max_size=2),
        st.none() | st.decimals(),
    ),
    Point: st.builds(Point, st.floats(), st.floats() | st.integers()),
    Cell: st.builds(Cell, st.integers(), st.none() | st.text(max_size=2)),
    FrozenCell: st.builds(FrozenCell, st.integers(), st.builds(Order, st.text(max_size=2))),
    UserId: st.text(max_size=3),
    Literal["a", 1, None]: st.sampled_from(["a", 1, None]),
}
hashables = {t: values for t, values in scalars.items() if t not in (Order, Cell, FrozenCell, Point)}
hashables |= {float: st.floats(allow_nan=False), Decimal: st.decimals(allow_nan=False)}
exact_scalars = st.sampled_from(list(scalars))
exact_keys = st.sampled_from(list(hashables))


def hints_and_values(inner):
    """From (hint, strategy of values) pairs to pairs one level up."""
    keys = exact_keys.map(lambda t: (t, hashables[t]))
    return st.one_of(
        inner.map(lambda p: (list[p[0]], st.lists(p[1], max_size=3))),
        inner.map(lambda p: (tuple[p[0], ...], st.lists(p[1], max_size=3).map(tuple))),
        inner.map(lambda p: (Optional[p[0]], st.none() | p[1])),  # noqa: UP045
        st.tuples(inner, inner).map(lambda p: (tuple[p[0][0], p[1][0]], st.tuples(p[0][1], p[1][1]))),
        keys.map(lambda p: (set[p[0]], st.sets(p[1], max_size=3))),
        keys.map(lambda p: (frozenset[p[0]], st.frozensets(p[1], max_size=3))),
        st.tuples(keys, inner).map(
            lambda p: (dict[p[0][0], p[1][0]], st.dictionaries(p[0][1], p[1][1], max_size=3))
        ),
    )


typed_values = st.recursive(exact_scalars.map(lambda t: (t, scalars[t])), hints_and_values, max_leaves=4).flatmap(
    lambda pair: st.tuples(st.just(pair[0]), pair[1])
)


@given(typed_values)
@examples(200, 600)
def test_values_of_a_declared_type_come_back_exactly(typed):
    hint, value = typed
    serializer = serializer_for(hint)
    assert serializer.name == "msgspec"
    assert same(serializer.loads(serializer.dumps(value)), value)


anything = st.recursive(
    st.one_of(*scalars.values()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(*hashables.values()), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=4,
)
some_hints = [int, str, float, list[int], tuple[int, ...], dict[str, Any], list, dict, Pair, Order, Cell, Any]
some_hints += [set[int], int | str, float | None, Decimal | int, Level, Decimal, dict[int, float], object, None]


@given(st.sampled_from(some_hints), anything)
@examples(200, 600)
def test_even_values_of_another_type_than_declared_come_back_exactly(hint, value):
    serializer = serializer_for(hint)
    assert same(serializer.loads(serializer.dumps(value)), value)


@given(anything)
@examples(60, 200)
def test_keys_come_back_exactly(key):
    assert same(KEY_SERIALIZER.loads(KEY_SERIALIZER.dumps(key)), key)


NEAR_MISSES = [
    (int, True),
    (int, Level.LOW),
    (int, 1.0),
    (int, 2**64),
    (float, 1),
    (Decimal, 1),
    (Decimal, 1.5),
    (str, Colour.RED),
    (str, "\ud800"),
    (list[int], (1, 2)),
    (tuple[int, int], [1, 2]),
    (tuple[int, str], Pair(1, "x")),
    (Pair, (1, "x")),
    (Pair, Pair(1.0, "x")),
    (tuple[int, ...], (1, 2.0)),
    (set[int], frozenset([1])),
    (dict[str, int], Counter("aab")),
    (dict[str, int], OrderedDict(a=1)),
    (dict[str, int], defaultdict(int, a=1)),
    (dict[str, int], {"a": True}),
    (dict[str, int], {1: 1}),
    (dict, {Pair(1, "x"): 1}),
    (dict[Any, int], {(1, 2): 1}),
    (tuple[int, int], (1, 2, 3)),
    (Order, SubOrder("a")),
    (Level, 1),
    (Literal["a"], "b"),
    (Literal[1], True),
    (dt.date, dt.datetime(2024, 1, 1)),
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    (dt.datetime, dt.datetime(2024, 1, 1, fold=1)),
    (Point, Point(1, 2.0)),
    (Order, Order("a", [(1, "x")])),
    (dict[str, Any], {"a": (1, 2)}),
    (dict, {"a": {1: [None, Decimal(1)]}}),
    (int | str, 1.5),
    (Order | None, Point(1.0, 2.0)),
]


@pytest.mark.parametrize(("hint", "value"), NEAR_MISSES, ids=repr)
def test_near_misses_keep_their_type(hint, value):
    serializer = serializer_for(hint)
    assert serializer.name == "msgspec"
    data = serializer.dumps(value)
    assert data[:1] == b"\xc1", "msgpack would have changed it"
    assert same(serializer.loads(data), value)


def test_attributes_besides_the_fields_are_kept():
    order = Order("a")
    order.seen = True
    serializer = serializer_for(Order)
    assert vars(serializer.loads(serializer.dumps(order))) == vars(order)


class Limited(msgspec.Struct):
    balance: Annotated[int, msgspec.Meta(ge=0)]
    tags: Annotated[list[Annotated[str, msgspec.Meta(max_length=2)]], msgspec.Meta(min_length=1)]
    rate: Annotated[float, msgspec.Meta(lt=1)] | None = None


@dataclass
class LimitedOrder:
    total: Annotated[int, msgspec.Meta(ge=0)]
    inner: Annotated[Limited | None, msgspec.Meta(description="no limit")] = None


class LimitedPair(NamedTuple):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]*$")]
    items: Annotated[set[tuple[int, int]], msgspec.Meta(max_length=1)]


WITHIN = [Limited(0, ["a"], 0.5), LimitedOrder(1, Limited(1, ["b"])), LimitedPair("a", {(1, 2)})]
BEYOND = [
    Limited(-1, ["a"]),
    Limited(1, []),
    Limited(1, ["abc"]),
    Limited(1, ["a"], 1.5),
    LimitedOrder(-1),
    LimitedOrder(1, Limited(-1, ["a"])),
    LimitedPair("A", set()),
    LimitedPair("a", {(1, 2), (3, 4)}),
]


@pytest.mark.parametrize(
    ("value", "limited"), [(v, False) for v in WITHIN] + [(v, True) for v in BEYOND], ids=repr
)
def test_values_beyond_the_limits_of_their_type_come_back(value, limited):
    serializer = serializer_for(type(value))
    assert serializer.name == "msgspec"
    data = serializer.dumps(value)
    assert (data[:1] == b"\xc1") is limited, "the decoder refuses what is beyond the limits"
    assert serializer.loads(data) == value
    assert [serializer.loads(each) for each in serializer.dumps_all([value, value])] == [value, value]
    assert (serializer.pack_all([value]) is None) is limited


def test_limits_that_msgspec_does_not_know_for_a_type_leave_it_to_pickle():
    assert serializer_for(Annotated[int | None, msgspec.Meta(ge=0)]).name == "pickle"


class Sparse(msgspec.Struct, omit_defaults=True):
    points: int = 0
    level: str = "basic"


class SparseWithoutDefaults(msgspec.Struct, omit_defaults=True):
    points: int


def test_a_field_that_has_its_default_is_written():
    serializer = serializer_for(Sparse)
    assert serializer.name == "msgspec"
    assert b"basic" in serializer.dumps(Sparse(5)), "else a later default would take its place"
    assert serializer.loads(serializer.dumps(Sparse(5))) == Sparse(5)
    assert serializer.pack_all([Sparse(5)]) is None
    assert serializer.loads(b"\x81\xa6points\x05") == Sparse(5), "as it was written before"


def test_without_defaults_nothing_is_left_out():
    assert serializer_for(SparseWithoutDefaults).dumps(SparseWithoutDefaults(0))[:1] != b"\xc1"


class Bag(msgspec.Struct, dict=True):
    n: int

    @cached_property
    def twice(self):
        return 2 * self.n


def test_attributes_of_a_struct_besides_its_fields_are_refused():
    serializer, bag = serializer_for(Bag), Bag(1)
    assert bag.twice == 2
    assert serializer.loads(serializer.dumps(bag)).twice == 2
    bag.seen = {3}
    for write in (serializer.dumps, lambda bag: serializer.dumps_all([bag])):
        with pytest.raises(
            SerializationError, match=r"type Bag has attributes .* struct: seen\. Declare them as fields"
        ):
            write(bag)


def test_an_instance_that_lacks_a_field_is_kept():
    point = Point.__new__(Point)
    object.__setattr__(point, "x", 1.0)
    with pytest.raises(SerializationError, match="Point"):  # pickle cannot either; but it says so
        serializer_for(Point).dumps(point)


def test_a_list_in_itself_is_kept():
    ring = [1]
    ring.append(ring)
    serializer = serializer_for(list)
    again = serializer.loads(serializer.dumps(ring))
    assert again[1] is again


def test_declared_types_are_compact():
    assert serializer_for(int).dumps(5) == b"\x05"
    assert serializer_for(str).dumps("ab") == b"\xa2ab"
    assert serializer_for(tuple[str, int]).dumps(("a", 1)) == b"\x92\xa1a\x01"
    assert serializer_for(dict[str, Any]).dumps({"a": [1, None]}) == b"\x81\xa1a\x92\x01\xc0"
    assert serializer_for(int | list[int]).dumps(5) == b"\x05"
    assert serializer_for(None).dumps(5)[:2] == b"\x80\x05", "the protocol is fixed"
    assert KEY_SERIALIZER.dumps(("a", (1,))) == b"\x92\xa1a\x91\x01"


# ---- which serializer --------------------------------------------------------------------------------------


class Plain:
    pass


class WithMixin(Plain):
    pass


@dataclass
class Validated:
    a: int

    def __post_init__(self):
        self.a += 1


@dataclass
class Derived:
    a: int
    b: int = field(init=False, default=3)


@dataclass
class WithInit:
    a: int
    b: InitVar[int] = 0


@dataclass
class Mixed(Plain):
    a: int


@dataclass
class Tree:
    value: int
    children: "list[Tree]"


@dataclass
class Lost:
    a: "NoSuchName"  # noqa: F821


@dataclass
class Reduced:
    a: int

    def __reduce__(self):
        return Reduced, (7,)


class SubPair(Pair):
    pass


class ReducedByProtocol(msgspec.Struct):
    a: int

    def __reduce_ex__(self, protocol):
        return ReducedByProtocol, (7,)


class ReducedStruct(msgspec.Struct):
    a: int

    def __reduce__(self):
        return ReducedStruct, (7,)


class GenericStruct(msgspec.Struct, Generic[T]):
    a: T


class Odd(enum.Enum):
    A = 1
    B = "x"


class Bits(enum.Flag):
    A = 1


class Upper(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "hint",
    [
        None,
        Any,
        object,
        Plain,
        Validated,
        Derived,
        WithInit,
        Mixed,
        Tree,
        Lost,
        Reduced,
        ReducedStruct,
        ReducedByProtocol,
        GenericStruct,
        SubPair,
        Odd,
        Bits,
        Upper,
        complex,
        tuple,
        range,
        list[Plain],
        dict[str, Tree],
        tuple[int, Plain],
        int | Plain,
        dt.datetime | str,
        Order | Cell,
        namedtuple("Untyped", "a b"),
        "a string",
        7,
    ],
    ids=repr,
)
def test_what_msgpack_would_not_keep_is_pickled(hint):
    assert serializer_for(hint).name == "pickle"


def test_asking_msgspec_for_such_a_type_is_refused():
    with pytest.raises(TypeError, match="does not keep values of type Plain as they are"):
        MsgspecSerializer(Plain)


class Quipu(Serializer):
    name = "quipu"
    version = 3

    def dumps(self, value):
        return b"knots" * value.count

    def loads(self, data):
        return Knots(len(data) // 5)

    def for_type(self, type_hint):
        return self if type_hint is Knots else None

    def reader_for(self, version):
        return self if version in (2, 3) else None


class Knots(NamedTuple):
    count: int


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_FORMATS", {})
    register_serializer(Quipu())


@pytest.mark.usefixtures("registered")
def test_a_registered_format_is_asked_first():
    chosen = serializer_for(Knots)
    assert chosen.name == "quipu"
    assert chosen.loads(chosen.dumps(Knots(2))) == Knots(2)
    assert serializer_for(int).name == "msgspec"
    assert serializer_for(None).name == "pickle"
    assert serializer_by_name("quipu").version == 3


@pytest.mark.usefixtures("registered")
def test_one_name_is_one_format():
    register_serializer(Quipu())  # again is harmless

    class Impostor(PickleSerializer):
        name = "quipu"

    class OtherPickle(Quipu):
        name = "pickle"

    with pytest.raises(ValueError, match="another serializer 'quipu' already: Quipu"):
        register_serializer(Impostor())
    with pytest.raises(ValueError, match="another serializer 'pickle' already"):
        register_serializer(OtherPickle())
    register_serializer(PickleSerializer())
    again = type("Quipu", (Quipu,), {"__module__": Quipu.__module__, "__qualname__": Quipu.__qualname__})()
    register_serializer(again)  # as a cell of a notebook does that is run again
    assert serializer_by_name("quipu") is again
    assert serializer_for(int).name == "msgspec", "the built-in ones stay last"


def test_without_registration_msgspec_takes_it():
    assert serializer_for(Knots).name == "msgspec"


def test_serializers_by_name():
    assert isinstance(serializer_by_name("pickle"), PickleSerializer)
    assert isinstance(serializer_by_name("msgspec").for_type(list[int]), MsgspecSerializer)
    with pytest.raises(UnknownNameError, match=r"no serializer 'pickel'\. Did you mean 'pickle'\?.*'msgspec'"):
        serializer_by_name("pickel")


def test_readers_of_other_versions():
    pickled = serializer_by_name("pickle")
    assert pickled.reader_for(1) is pickled
    assert pickled.reader_for(2) is None


# ---- errors ------------------------------------------------------------------------------------------------


def test_what_pickle_cannot_take_is_named():
    with pytest.raises(SerializationError, match=r"a value of type function cannot be pickled: .*lambda"):
        PickleSerializer().dumps(lambda: None)
    with pytest.raises(SerializationError, match="a value of type function cannot be pickled"):
        serializer_for(int).dumps(lambda: None)


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (int, b""),
        (int, b"\xa1a"),
        (int, b"\x05\x05"),
        (str, b"\xa5a"),
        (str, b"\xa1\xff"),
        (set, b"\x91\x80"),
        (Pair, b"\x91\xa1x"),
        (Order, b"\x80"),
        (list, b"\x91" * 100_000),
        (None, b""),
        (None, b"junk"),
        (int, b"\xc1junk"),
    ],
    ids=repr,
)
def test_bytes_that_are_no_value_are_refused(hint, data):
    with pytest.raises(SerializationError, match=r"^\d+ bytes cannot be (read|unpickled)"):
        serializer_for(hint).loads(data)


@pytest.mark.parametrize("data", [b"", b"\xa5a", b"\xc1junk", b"\x91" * 100_000], ids=repr)
def test_bytes_that_are_no_key_are_refused(data):
    with pytest.raises(SerializationError, match=r"^\d+ bytes cannot be (read as a key|unpickled)"):
        KEY_SERIALIZER.loads(data)


# ---- rows --------------------------------------------------------------------------------------------------

rows = st.lists(
    st.builds(
        Row,
        st.integers(0, 100),
        st.binary(max_size=5),
        st.binary(max_size=5),
        st.binary(max_size=5) | st.lists(st.binary(max_size=5), max_size=3),
    ),
    max_size=5,
)


@given(rows)
def test_rows_come_back(some):
    again = decode_rows(encode_rows(some))
    assert again == some
    assert all(type(row) is Row for row in again)
    assert encode_rows(iter(some)) == encode_rows(some)


def test_the_layout_of_rows():
    from zlib import crc32

    body = b"\x92\x94\x02\xc4\x01n\xc4\x01k\xc4\x01v\x94\x00\xc4\x00\xc4\x01k\x92\xc4\x01x\xc4\x01y"
    data = encode_rows([Row(2, b"n", b"k", b"v"), Row(0, b"", b"k", [b"x", b"y"])])
    assert data == b"SWR\x01" + crc32(body).to_bytes(4, "little") + body


@given(rows, st.data())
def test_damaged_rows_are_refused(some, data):
    good = bytearray(encode_rows(some))
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptStreamError):
        decode_rows(bytes(good))
    with pytest.raises(CorruptStreamError):
        decode_rows(encode_rows(some)[: data.draw(st.integers(0, len(good) - 1))])


def test_damage_is_described():
    with pytest.raises(CorruptStreamError, match=r"^these 4 bytes are no state rows: they begin with b'junk'"):
        decode_rows(b"junk")
    with pytest.raises(CorruptStreamError, match="layout 3 cannot be read: this version knows layouts 1 and 2"):
        decode_rows(b"SWR\x03" + bytes(5))
    good = encode_rows([])
    with pytest.raises(CorruptStreamError, match=r"damaged: checksum [0-9a-f]{8} of 2 bytes, [0-9a-f]{8} was"):
        decode_rows(good + b"x")
    from zlib import crc32

    with pytest.raises(CorruptStreamError, match="not what their layout says"):
        decode_rows(b"SWR\x01" + crc32(b"\x05").to_bytes(4, "little") + b"\x05")


def test_the_first_of_several_values_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(SerializationError, match="a value of type lock cannot be pickled"):
        PickleSerializer().dumps([1, threading.Lock(), lambda: 1])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements need Python 3.12")
def test_a_type_alias_is_written_as_what_it_names() -> None:
    names: dict[str, Any] = {}
    exec("type Cents = int\ntype Pair[T] = tuple[T, Cents]\ntype Tree = list[Tree] | int", names)
    named = make_dataclass("Bill", [("cents", names["Cents"]), ("pair", names["Pair"][str] | None)])
    plain = make_dataclass("Bill", [("cents", int), ("pair", tuple[str, int] | None)])
    assert describe(named) == describe(plain)
    value = named(1, ("a", 2))
    written = serializer_for(named).dumps(value)
    assert serializer_for(named).loads(written) == value
    assert serializer_for(plain).loads(written) == plain(1, ("a", 2))
    assert serializer_for(names["Tree"]).name == "pickle"
