# ruff: noqa: UP007, UP045  (both ways to write a union are tested)
from __future__ import annotations

import collections
import collections.abc
import datetime as dt
import decimal
import enum
import fractions
import functools
import operator
import sys
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    Protocol,
    SupportsIndex,
    TypedDict,
    TypeVar,
)
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from sluiceway.functions import (
    AggregateFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from sluiceway.types import (
    conformity,
    element_type,
    is_assignable,
    is_known,
    members,
    parameter_type,
    return_type,
    type_name,
    unaliased,
    union_of,
)

if typing.TYPE_CHECKING:
    from nowhere import Missing

T = TypeVar("T")
U = TypeVar("U")
UserId = NewType("UserId", int)
NoneType = type(None)


@dataclass
class Order:
    user: str
    total: float


class BigOrder(Order):
    pass


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str


class HasLen(Protocol):
    def __len__(self) -> int: ...


class Box(Generic[T]):
    pass


class Strings(list[str]):
    pass


class Pairs(Generic[T], Iterable[tuple[str, T]]):
    def __iter__(self) -> Iterator[tuple[str, T]]:
        raise NotImplementedError


class Things(collections.UserList[T]):
    pass


class MoreThings(Things[Order]):
    pass


def parse(line: str) -> Order:
    raise NotImplementedError


def split(line: str) -> Iterator[str]:
    yield from line.split()


def unresolvable(value: Missing, other: int) -> str:
    raise NotImplementedError


def identity(value: T) -> T:
    return value


async def later(value: int) -> str:
    return str(value)


def star(*values: int) -> None: ...


def plain(value, other: int = 3):
    return value


@functools.lru_cache
def cached(value: int) -> str:
    return str(value)


def wrapped_by(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


@wrapped_by
def decorated(value: int) -> bytes:
    return bytes(value)


class Parser:
    def parse(self, line: str) -> Order:
        raise NotImplementedError

    @classmethod
    def make(cls, line: str) -> int:
        return 0

    @staticmethod
    def build(line: str) -> float:
        return 0.0

    def __call__(self, line: bytes) -> list[int]:
        return []


class Hinted(MapFunction[Any, Any]):
    def map(self, value: int) -> str:
        return str(value)


class ByBase(MapFunction[int, str]):
    def map(self, value):
        return str(value)


class Half(MapFunction[T, list[T]]):
    def map(self, value):
        return [value]


class Below(Half[int]):
    def map(self, x):
        return [x]


class Swapped(Generic[T, U], MapFunction[U, T]):
    def map(self, value):
        raise NotImplementedError


class Words(FlatMapFunction[str, str]):
    def flat_map(self, value):
        yield value


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self):
        return (0.0, 0)

    def add(self, value, accumulator):
        return accumulator

    def get_result(self, accumulator):
        return 0.0


class Proc(ProcessFunction[str, int]):
    def process_element(self, value, ctx):
        return [1]


class ByUser(KeySelector[Order, str]):
    def get_key(self, value):
        return value.user


class Longest(ReduceFunction[str]):
    def reduce(self, value1, value2):
        return max(value1, value2, key=len)


class TestReturnType:
    @pytest.mark.parametrize(
        ("fn", "expected"),
        [
            (parse, Order),
            (split, Iterator[str]),
            (unresolvable, str),
            (star, NoneType),
            (cached, str),
            (decorated, bytes),
            (Parser().parse, Order),
            (Parser.parse, Order),
            (Parser.make, int),
            (Parser().make, int),
            (Parser.build, float),
            (Parser().build, float),
            (Parser(), list[int]),
            (Order, Order),
            (int, int),
            (Colour, None),
            (type, None),
            (functools.partial(parse, "x"), Order),
            (functools.partial(Order, "x"), Order),
            (functools.partial(Parser().parse, "x"), Order),
            (identity, None),
            (plain, None),
            (lambda x: x, None),
            (len, None),
            (str.lower, None),
            (operator.itemgetter(1), None),
            (17, None),
            (None, None),
        ],
    )
    def test_of_callables(self, fn: Any, expected: Any) -> None:
        assert return_type(fn) == expected

    @pytest.mark.parametrize(
        ("fn", "method", "expected"),
        [
            (Hinted(), "map", str),
            (ByBase(), "map", str),
            (Half(), "map", list[T]),
            (Half[int](), "map", list[int]),
            (Below(), "map", list[int]),
            (Swapped[bytes, int](), "map", bytes),
            (Words(), "flat_map", Iterable[str]),
            (Mean(), "get_result", float),
            (Proc(), "process_element", Optional[Iterable[int]]),
            (ByUser(), "get_key", str),
            (Longest(), "reduce", str),
            (Longest(), "no_such_method", None),
        ],
    )
    def test_of_function_objects(self, fn: Any, method: str, expected: Any) -> None:
        assert return_type(fn, method) == expected

    def test_an_async_function_returns_a_coroutine(self) -> None:
        assert type_name(return_type(later)) == "Coroutine[Any, Any, str]"

    def test_names_of_the_enclosing_function_are_resolved_where_it_uses_them(self) -> None:
        class Local:
            pass

        def make() -> Local:
            return Local()

        assert return_type(make) is Local

    def test_a_hostile_object_is_unknown(self) -> None:
        class Hostile:
            def __getattribute__(self, name: str) -> Any:
                raise RuntimeError("no")

            def __call__(self) -> int:
                return 0

        assert return_type(Hostile()) in (None, int)
        assert parameter_type(Hostile()) is None


class TestParameterType:
    @pytest.mark.parametrize(
        ("fn", "index", "expected"),
        [
            (parse, 0, str),
            (parse, 1, None),
            (plain, 0, None),
            (plain, 1, int),
            (unresolvable, 0, None),
            (unresolvable, 1, int),
            (star, 0, int),
            (star, 5, int),
            (cached, 0, int),
            (decorated, 0, int),
            (Parser().parse, 0, str),
            (Parser.parse, 1, str),
            (Parser.make, 0, str),
            (Parser(), 0, bytes),
            (Order, 0, str),
            (Order, 1, float),
            (functools.partial(plain, 1), 0, int),
            (functools.partial(Order, "x"), 0, float),
            (int, 0, None),
            (len, 0, None),
            (lambda x: x, 0, None),
        ],
    )
    def test_of_callables(self, fn: Any, index: int, expected: Any) -> None:
        assert parameter_type(fn, index) == expected

    @pytest.mark.parametrize(
        ("fn", "method", "expected"),
        [
            (Hinted(), "map", int),
            (ByBase(), "map", int),
            (Below(), "map", int),
            (Swapped[bytes, int](), "map", int),
            (Words(), "flat_map", str),
            (Mean(), "add", float),
            (Proc(), "process_element", str),
            (ByUser(), "get_key", Order),
        ],
    )
    def test_of_function_objects(self, fn: Any, method: str, expected: Any) -> None:
        assert parameter_type(fn, 0, method) == expected


class TestElementType:
    @pytest.mark.parametrize(
        ("t", "expected"),
        [
            (Iterable[int], int),
            (Iterator[str], str),
            (Generator[int, None, str], int),
            (list[Order], Order),
            (set[int], int),
            (Sequence[tuple[str, int]], tuple[str, int]),
            (dict[str, int], str),
            (collections.deque[int], int),
            (tuple[int, ...], int),
            (tuple[int, str], int | str),
            (str, str),
            (bytes, int),
            (Optional[Iterable[int]], int),
            (list[int] | list[str], int | str),
            (Strings, str),
            (Pairs[int], tuple[str, int]),
            (MoreThings, Order),
            (list, None),
            (list[Any], None),
            (Box[int], None),
            (int, None),
            (Any, None),
            (None, None),
            ("forward", None),
        ],
    )
    def test_it(self, t: Any, expected: Any) -> None:
        assert element_type(t) == expected


FITS = [
    (int, int),
    (bool, int),
    (int, float),
    (bool, float),
    (int, complex),
    (float, complex),
    (fractions.Fraction, float),
    (bytearray, bytes),
    (BigOrder, Order),
    (Order, object),
    (Order, Any),
    (Any, Order),
    (None, int),
    (int, None),
    (object, int),
    (T, int),
    (int, T),
    (int, HasLen),
    (int, "Later"),
    (int, int | None),
    (NoneType, int | None),
    (int | str, int | str | bytes),
    (int | Any, int),
    (list[int], list[int]),
    (list[int], list),
    (list, list[int]),
    (list[int], Iterable[float]),
    (list[bool], Sequence[int]),
    (str, Iterable[str]),
    (dict[str, int], Mapping[str, float]),
    (dict[str, int], Iterable[str]),
    (tuple[int, str], tuple[int, str]),
    (tuple[int, str], tuple[float, object]),
    (tuple[int, int], tuple[int, ...]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, int], Sequence[int]),
    (tuple[()], tuple[int, ...]),
    (Point, tuple[int, int]),
    (Movie, dict[str, Any]),
    (dict[str, str], Movie),
    (UserId, int),
    (int, UserId),
    (Annotated[int, "x"], int),
    (int, Annotated[float, "x"]),
    (Literal[1, 2], int),
    (Literal[1], Literal[1, 2]),
    (str, Literal["a"]),
    (Colour, Colour),
    (Box[int], Box[int]),
    (Box[bool], Box[int]),
    (typing.Never, int),
    (decimal.Decimal, collections.abc.Hashable),
    (Callable[[int], str], Callable[..., Any]),
    (3, int),
]
CLASHES = [
    (int, str),
    (str, int),
    (float, int),
    (fractions.Fraction, int),
    (str, bytes),
    (Order, BigOrder),
    (Order, str),
    (int | None, int),
    (int | str, int),
    (str, int | bytes),
    (NoneType, int),
    (list[int], list[str]),
    (list[int], Iterable[str]),
    (list[int], dict[str, int]),
    (str, Iterable[int]),
    (str, list[str]),
    (dict[str, int], Mapping[str, str]),
    (dict[str, int], Iterable[int]),
    (tuple[int, str], tuple[str, int]),
    (tuple[int, str], tuple[int]),
    (tuple[int, str], tuple[int, ...]),
    (tuple[str, ...], tuple[int, int]),
    (Point, dict),
    (Movie, int),
    (UserId, str),
    (Literal["a"], int),
    (Literal[3], Literal[1, 2]),
    (int, Literal["a"]),
    (Colour, int),
    (Box[int], Box[str]),
    (int, Iterable[int]),
    (int, Callable[..., Any]),
    (Order, collections.abc.Sized),
]


class TestAssignable:
    @pytest.mark.parametrize(("produced", "wanted"), FITS, ids=repr)
    def test_what_goes_together(self, produced: Any, wanted: Any) -> None:
        assert is_assignable(produced, wanted)

    @pytest.mark.parametrize(("produced", "wanted"), CLASHES, ids=repr)
    def test_what_does_not(self, produced: Any, wanted: Any) -> None:
        assert not is_assignable(produced, wanted)

    @given(st.data())
    def test_odd_things_never_raise_and_go_with_everything(self, data: st.DataObject) -> None:
        odd = data.draw(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.booleans()))
        assert is_assignable(odd, int)
        assert is_assignable(int, odd)
        assert isinstance(type_name(odd), str)
        element_type(odd)
        return_type(odd)
        parameter_type(odd)

    @given(
        st.recursive(
            st.sampled_from([int, str, bool, float, Order, BigOrder, NoneType]),
            lambda t: st.one_of(
                t.map(lambda a: list[a]),  # type: ignore[valid-type]
                st.tuples(t, t).map(lambda ab: tuple[ab[0], ab[1]]),  # type: ignore[valid-type]
                st.tuples(t, t).map(lambda ab: typing.Union[ab[0], ab[1]]),
                st.tuples(t, t).map(lambda ab: dict[ab[0], ab[1]]),  # type: ignore[valid-type]
            ),
            max_leaves=6,
        )
    )
    def test_a_type_goes_with_itself_and_with_any_union_it_is_in(self, t: Any) -> None:
        assert is_assignable(t, t)
        assert is_assignable(t, typing.Union[t, bytes])
        assert is_assignable(t, union_of([bytes, t]))
        assert not is_assignable(typing.Union[t, bytes], t)
        assert not is_assignable(list[t], set[t])  # type: ignore[valid-type]
        assert type_name(t)


class TestUnions:
    def test_of_equal_types_is_that_type(self) -> None:
        assert union_of([int, int]) is int

    def test_with_something_unknown_is_unknown(self) -> None:
        assert union_of([int, None]) is None
        assert union_of([]) is None

    def test_members(self) -> None:
        assert members(Optional[int]) == (int, NoneType)
        assert members(int) == (int,)
        assert members(Any) == ()

    @pytest.mark.parametrize("t", [None, Any, object, T, "X", Annotated[Any, 1]])
    def test_what_says_nothing(self, t: Any) -> None:
        assert not is_known(t)

    def test_none_as_a_type_says_something(self) -> None:
        assert is_known(NoneType)


@dataclass
class Sold:
    item: str
    price: float
    then: Sold | None = None


class Sale(Sold):
    pass


class Pair(NamedTuple):
    name: str
    counts: list[int]


class Packed(msgspec.Struct):
    size: int


class Titled(TypedDict):
    title: str


class TestConformity:
    @pytest.mark.parametrize(
        ("t", "value"),
        [
            (int, 1),
            (int, True),
            (int, 2**80),
            (float, 1),
            (float, Fraction(1, 3)),
            (str | None, None),
            (NoneType, None),
            (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
            (dt.date, dt.datetime(2026, 1, 1)),
            (Literal["a", 1], 1),
            (list, [object()]),
            (list[Any], [object()]),
            (dict[str, list[int]], {"a": [1]}),
            (tuple[int, str], (1, "a")),
            (tuple[int, ...], (1, 2)),
            (tuple[()], ()),
            (Iterable[int], iter("not looked into")),
            (Sold, Sold("tea", 3)),
            (Sold, Sale("tea", 3.0, Sold("milk", 1.0))),
            (Pair, Pair("a", [1])),
            (Packed, Packed(1)),
            (Titled, {"anything": 1}),
            (list[Sold | int], [1, Sold("tea", 3.0)]),
            (UserId, 3),
            (Annotated[int, "x"], 3),
            (type[int], bool),
            (Callable[[int], str], len),
        ],
    )
    def test_of_the_type(self, t: Any, value: Any) -> None:
        check = conformity(t)
        assert check is not None
        assert check(value)

    @pytest.mark.parametrize(
        ("t", "value"),
        [
            (int, None),
            (int, 1.0),
            (int, "1"),
            (bool, 1),
            (float, "1"),
            (str | None, 1),
            (NoneType, 0),
            (Literal["a", 1], True),
            (list, ()),
            (list[int], {1}),
            (dict[str, list[int]], ["a"]),
            (tuple[list[int], int], ([1], "a")),
            (tuple[int, str], (1, "a", "b")),
            (tuple[int, ...], [1, 2]),
            (tuple[Sold, int], (Sold("tea", None), 1)),  # type: ignore[arg-type]
            (Sold, Sold("tea", "3")),  # type: ignore[arg-type]
            (Sold, {"item": "tea", "price": 3.0}),
            (Sale, Sold("tea", 3.0)),
            (Pair, ("a", [1])),
            (Pair, Pair("a", 1)),  # type: ignore[arg-type]
            (Packed, Packed("a")),  # type: ignore[arg-type]
            (Titled, "title"),
            (list[Sold | int], Sold("tea", 3.0)),
            (UserId, "3"),
        ],
    )
    def test_of_another_type(self, t: Any, value: Any) -> None:
        check = conformity(t)
        assert check is not None
        assert not check(value)

    @pytest.mark.parametrize("t", [None, Any, object, T, "X", int | Any, Callable, SupportsIndex, 3])
    def test_what_says_nothing_checks_nothing(self, t: Any) -> None:
        check = conformity(t)
        assert check is None or check(len)

    def test_a_class_that_came_back_with_its_code_is_the_same_class(self) -> None:
        namesake = dataclass(type("Sold", (), {"__module__": __name__, "__annotations__": {"item": str}}))
        check = conformity(Sold)
        assert check is not None
        assert check(namesake("tea"))
        assert not check(namesake(3))

    def test_what_is_in_collections_is_not_looked_at(self) -> None:
        for t, value in ((list[int], ["a"]), (dict[str, int], {1: "a"}), (tuple[int, ...], ("a",))):
            check = conformity(t)
            assert check is not None
            assert check(value)

    def test_fields_that_are_missing_are_not_judged(self) -> None:
        sold = Sold("tea", 3.0)
        del sold.price
        check = conformity(Sold)
        assert check is not None
        assert check(sold)


class TestNames:
    @pytest.mark.parametrize(
        ("t", "shown"),
        [
            (None, "unknown"),
            (NoneType, "None"),
            (int, "int"),
            (Order, "Order"),
            (list[int], "list[int]"),
            (tuple[int, ...], "tuple[int, ...]"),
            (dict[str, list[Order]], "dict[str, list[Order]]"),
            (Optional[int], "int | None"),
            (int | str, "int | str"),
            (Literal["a", 1], "Literal['a', 1]"),
            (Annotated[int, "x"], "int"),
            (Iterable[str], "Iterable[str]"),
            (Callable[[int], str], "Callable[[int], str]"),
            (Any, "Any"),
            (T, "T"),
            (UserId, "int"),
            ("Later", "Later"),
        ],
    )
    def test_type_name(self, t: Any, shown: str) -> None:
        assert type_name(t) == shown

    def test_qualified(self) -> None:
        assert type_name(list[decimal.Decimal], qualified=True) == "list[decimal.Decimal]"

    def test_a_broken_type_is_unknown(self) -> None:
        class Broken:
            __class_getitem__ = None

            def __getattr__(self, name: str) -> Any:
                raise RuntimeError("no")

            def __repr__(self) -> str:
                raise RuntimeError("no")

        assert type_name(Broken()) == "unknown"


class TestAliases:
    """A ``type`` statement makes the same since Python 3.12; typing_extensions has them for all versions."""

    CENTS = TypeAliasType("CENTS", int)
    PAIR = TypeAliasType("PAIR", tuple[U, T], type_params=(T, U))

    def test_an_alias_is_what_it_names(self) -> None:
        named: Any = self.PAIR[str, self.CENTS]
        assert unaliased(named) == tuple[self.CENTS, str]
        assert unaliased(unaliased(TypeAliasType("AGAIN", named))) == tuple[self.CENTS, str]
        assert unaliased(NewType("Price", self.CENTS)) is int
        assert unaliased(list[self.CENTS]) == list[self.CENTS]

    def test_arguments_of_an_alias_are_compared(self) -> None:
        named: Any = self.PAIR[str, self.CENTS]
        assert type_name(named) == "tuple[int, str]"
        assert is_assignable(named, tuple[int, str])
        assert not is_assignable(named, tuple[str, int])
        conforms = conformity(named)
        assert conforms is not None
        assert conforms((1, "a"))
        assert not conforms(("a", 1))

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements need Python 3.12")
    def test_nothing_is_known_of_an_alias_of_a_name_that_is_not_found(self) -> None:
        names: dict[str, Any] = {}
        exec("type Unknown = list[Missing]", names)
        assert not is_known(names["Unknown"])
        assert members(names["Unknown"]) == ()
        assert is_assignable(names["Unknown"], int)
