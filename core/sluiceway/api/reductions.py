"""What sum, min, max, min_by, max_by and count do with two records: small objects that can be pickled."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from sluiceway.errors import FunctionContractError
from sluiceway.functions import AggregateFunction, ReduceFunction

__all__ = [
    "BestBy",
    "Count",
    "Extreme",
    "ExtremeField",
    "ExtremeOf",
    "Field",
    "SumField",
    "SumOf",
    "SumValues",
]

_NOT_NUMBERS: Final = frozenset({str, bytes, tuple, list, dict, set, frozenset})


_ABSENT: Final = (LookupError, TypeError, AttributeError)
"""What comes of asking a record for a field that it has not got."""


class Field:
    """Reads and replaces one field of a record: an index, a key of a mapping, or an attribute.

    Args:
        name: an int for what is indexed, a str for a mapping's key or an attribute.
        word: the step that wants it, for messages.
    """

    def __init__(self, name: int | str, word: str) -> None:
        self.name = name
        self._word = word
        self._item = operator.itemgetter(name)
        self._replace_in: dict[type, Callable[[Any, Any], Any]] = {}
        self.getter: Callable[[Any], Any] = self._item if isinstance(name, int) else self._get_named
        """Gets the field of a record, or raises what :meth:`absent` is to be told of."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Field, (self.name, self._word))

    def _get_named(self, record: Any) -> Any:
        if record.__class__ is dict or isinstance(record, Mapping):
            return self._item(record)
        return getattr(record, self.name)  # type: ignore[arg-type]

    def absent(self, error: BaseException, *records: Any) -> BaseException:
        """What to raise for an error that came while fields were worked with: the error, or one that says more."""
        for record in records:
            try:
                self.getter(record)
            except _ABSENT:
                return self._without(record)
        return error

    def replaced(self, record: Any, value: Any) -> Any:
        """A copy of ``record`` with the field set to ``value``; ``record`` stays as it is."""
        kind = type(record)
        replace = self._replace_in.get(kind)
        if replace is None:
            replace = self._replace_in[kind] = self._how(record)
        return replace(record, value)

    def _without(self, record: Any) -> FunctionContractError:
        return FunctionContractError(
            f"{self._word}({self.name!r}): a record of type {type(record).__name__} has no field {self.name!r}"
        )

    def _how(self, record: Any) -> Callable[[Any, Any], Any]:
        kind, name = type(record), self.name
        named_tuple = isinstance(record, tuple) and hasattr(kind, "_make")
        if isinstance(name, str):
            if named_tuple:
                return lambda r, v: r._replace(**{name: v})
            if kind is dict:
                return lambda r, v: {**r, name: v}
            if hasattr(kind, "__struct_fields__"):
                import msgspec

                return lambda r, v: msgspec.structs.replace(r, **{name: v})
            if isinstance(record, Mapping):
                return _set_item(name)
            return _set_attribute(name, frozen=dataclasses.is_dataclass(record))
        if isinstance(record, tuple):

            def replace(r: Any, v: Any) -> Any:
                fields = list(r)
                fields[name] = v
                return kind._make(fields) if named_tuple else tuple(fields)

            return replace
        return _set_item(name)


def _set_item(name: int | str) -> Callable[[Any, Any], Any]:
    def replace(record: Any, value: Any) -> Any:
        copied = copy.copy(record)
        copied[name] = value
        return copied

    return replace


def _set_attribute(name: str, *, frozen: bool) -> Callable[[Any, Any], Any]:
    # dataclasses.replace() would call __init__ again, which need not take every field.
    store = object.__setattr__ if frozen else setattr

    def replace(record: Any, value: Any) -> Any:
        copied = copy.copy(record)
        store(copied, name, value)
        return copied

    return replace


class SumValues(ReduceFunction[Any]):
    """Adds records up as they are."""

    combines: Final = ("sum", None)
    """What a producer may do to records before it sends them, and of what: see operators/combining.py."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Their sum."""
        if value2.__class__ in _NOT_NUMBERS:
            raise FunctionContractError(
                f"sum() adds numbers, but a record is a {type(value2).__name__}: say which field, as in sum(1), "
                'sum("price") or sum(lambda order: order.price)'
            )
        return value1 + value2


class SumField(ReduceFunction[Any]):
    """Adds one field up; the other fields stay those of the key's first record."""

    def __init__(self, field: int | str) -> None:
        self._name: Any = field
        self._field = Field(field, "sum")
        self._get = self._field.getter

    def __reduce__(self) -> tuple[Any, ...]:
        return (SumField, (self._name,))

    def reduce(self, value1: Any, value2: Any) -> Any:
        """A copy of ``value1`` with the sum."""
        name = self._name
        try:
            if value1.__class__ is tuple:  # by far the most common record
                fields = [*value1]
                fields[name] += value2[name]
                return tuple(fields)
            get = self._get
            total = get(value1) + get(value2)
        except _ABSENT as error:
            raise self._field.absent(error, value1, value2) from error
        return self._field.replaced(value1, total)


class Extreme(ReduceFunction[Any]):
    """Keeps the smallest or the largest record; the earlier one of two equal ones.

    Args:
        word: ``min`` or ``max``.
    """

    _BETTER: ClassVar[dict[str, Callable[[Any, Any], bool]]] = {"min": operator.lt, "max": operator.gt}

    def __init__(self, word: str) -> None:
        self._better = self._BETTER[word]

    def reduce(self, value1: Any, value2: Any) -> Any:
        """The better of the two."""
        return value2 if self._better(value2, value1) else value1


class ExtremeField(Extreme):
    """Keeps the smallest or largest value of one field; the other fields stay those of the first record."""

    def __init__(self, word: str, field: int | str) -> None:
        super().__init__(word)
        self._arguments = (word, field)
        self._field = Field(field, word)
        self._get = self._field.getter

    def __reduce__(self) -> tuple[Any, ...]:
        return (ExtremeField, self._arguments)

    def reduce(self, value1: Any, value2: Any) -> Any:
        """``value1``, or a copy of it with the better field."""
        get = self._get
        try:
            mine = get(value2)
            if not self._better(mine, get(value1)):
                return value1
        except _ABSENT as error:
            raise self._field.absent(error, value1, value2) from error
        return self._field.replaced(value1, mine)


class BestBy(Extreme):
    """Keeps the whole record in which something is smallest or largest.

    Args:
        word: ``min`` or ``max``.
        by: a field, or what computes the thing from a record.
        first: whether the earlier or the later of two equal ones is kept.
    """

    def __init__(self, word: str, by: int | str | Callable[[Any], Any], first: bool) -> None:
        super().__init__(word)
        self._arguments = (word, by, first)
        self._field = None if callable(by) else Field(by, f"{word}_by")
        self._by: Callable[[Any], Any] = by if callable(by) else Field(by, f"{word}_by").getter
        self._first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return (BestBy, self._arguments)

    def reduce(self, value1: Any, value2: Any) -> Any:
        """The better record."""
        by = self._by
        try:
            if self._first:
                return value2 if self._better(by(value2), by(value1)) else value1
            return value1 if self._better(by(value1), by(value2)) else value2
        except _ABSENT as error:
            if self._field is None:
                raise
            raise self._field.absent(error, value1, value2) from error


class Count(AggregateFunction[Any, int, int]):
    """Counts."""

    combines: Final = ("count", None)

    def create_accumulator(self) -> int:
        """None seen yet."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        """One more."""
        return accumulator + 1

    get_result = staticmethod(operator.pos)  # type: ignore[assignment]  # the number itself, at the price of C

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        """Both together."""
        return accumulator1 + accumulator2


class _Of(AggregateFunction[Any, Any, Any]):
    """Folds what a function computes from each record; the accumulator is a tuple of none or one value."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self._of = of

    def create_accumulator(self) -> Any:
        """Nothing yet."""
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        """Fold one record in."""
        new = (self._of(value),)
        return self.merge(accumulator, new) if accumulator else new

    def get_result(self, accumulator: Any) -> Any:
        """The running value."""
        return accumulator[0]


class SumOf(_Of):
    """The running sum of what a function computes."""

    @property
    def combines(self) -> tuple[str, Any]:
        """As :attr:`SumValues.combines`."""
        return ("sum", self._of)

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        """Their sum."""
        return (accumulator1[0] + accumulator2[0],)


class ExtremeOf(_Of):
    """The smallest or largest of what a function computes."""

    def __init__(self, word: str, of: Callable[[Any], Any]) -> None:
        super().__init__(of)
        self._extreme = Extreme(word)
        self.combines = (word, of)

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        """The better one."""
        return (self._extreme.reduce(accumulator1[0], accumulator2[0]),)
