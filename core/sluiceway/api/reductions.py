"""Functions behind sum, min, max, min_by, max_by and count; all of them can be pickled."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping
from textwrap import indent
from typing import Any, Final

from sluiceway.errors import FunctionContractError
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.operators.folds import Fold, Folding, Text, first_of
from sluiceway.util.overriding import override

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
"""Types that ``+`` concatenates, or does not take."""

_CONVERT: Final = (
    "convert it before, as with float() in a map(), or give the source a type; reduce() adds up anything else"
)

_ABSENT: Final = (LookupError, TypeError, AttributeError)
"""Exceptions raised by reading a field that a record lacks."""

_BETTER: Final[dict[str, Callable[[Any, Any], bool]]] = {"min": operator.lt, "max": operator.gt}
_SIGN: Final = {"min": "<", "max": ">"}

# Source of folds: `held` is the accumulator, `add` the function, and the other names are those of Fold.
# A number takes only numbers, so sums look at the first record of a key.
_SUM_OF: Final = Text("(first(add(value)),)", "held = (held[0] + add(value),)\n")

_RUNNING_SUM: Final = "made = made + add(value)\nentries[key] = (made,)\n"

_EXTREME_OF: Final = "new = add(value)\nif new {sign} held[0]:\n    held = (new,)\n"

_RUNNING_EXTREME: Final = "new = add(value)\nif new {sign} made:\n    made = new\n    entries[key] = (made,)\n"

_SUM_VALUES: Final = Text(
    "value",
    """\
if value.__class__ is int or value.__class__ is float:
    held = held + value
else:
    held = add(held, value)
""",
)

# Records of the kinds that are most common: when they can be told, and what is done with them.
_SUM_ITEM: Final = (
    "held.__class__ is tuple",
    """\
fields = [*held]
fields[{name}] += value[{name}]
held = tuple(fields)
""",
)
_SUM_KEY: Final = (
    "held.__class__ is value.__class__ is dict",
    "held = {{**held, {name}: held[{name}] + value[{name}]}}\n",
)
_EXTREME_ITEM: Final = (
    "held.__class__ is value.__class__ is tuple",
    """\
new = value[{name}]
if new {sign} held[{name}]:
    fields = [*held]
    fields[{name}] = new
    held = tuple(fields)
""",
)
_EXTREME_KEY: Final = (
    "held.__class__ is value.__class__ is dict",
    """\
new = value[{name}]
if new {sign} held[{name}]:
    held = {{**held, {name}: new}}
""",
)

# Other records are given to the function.
_OF_FIELD: Final = """\
if {common}:
    try:
{fast}    except absent as error:
        raise first.absent(error, held, value) from error
else:
    held = add(held, value)
"""


def _text_of_field(
    name: Any, by_item: tuple[str, str], by_key: tuple[str, str], *, begin: str = "value", sign: str = ""
) -> Text:
    """Return the generated code that folds one field; ``first`` in it is the :class:`Field`."""
    if type(name) not in (int, str):  # a subclass may say anything of itself
        return Text(begin, "held = add(held, value)\n")
    common, fast = by_item if type(name) is int else by_key
    body = indent(fast.format(name=repr(name), sign=sign), " " * 8)
    return Text(begin, _OF_FIELD.format(common=common, fast=body))


class Field:
    """Accessor that reads and replaces one field of a record: an index, a mapping's key or an attribute.

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
        """Function that returns the field of a record; pass what it raises to :meth:`absent`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the functions that were made for classes, which cannot be pickled.
        return (Field, (self.name, self._word))

    def _get_named(self, record: Any) -> Any:
        if record.__class__ is dict or isinstance(record, Mapping):
            return self._item(record)
        return getattr(record, self.name)  # type: ignore[arg-type]

    def absent(self, error: BaseException, *records: Any) -> BaseException:
        """Return the exception to raise: one that names the record without the field, else ``error`` itself."""
        for record in records:
            try:
                self.getter(record)
            except _ABSENT:
                return self._without(record)
        return error

    def with_number(self, record: Any) -> Any:
        """Return a record whose field can be added up.

        Raises:
            FunctionContractError: the field is missing, or a text or a container, which ``+`` would concatenate.
        """
        try:
            value = self.getter(record)
        except _ABSENT as error:
            raise self.absent(error, record) from error
        if value.__class__ in _NOT_NUMBERS:
            raise FunctionContractError(
                f"{self._word}({self.name!r}) adds numbers, but {self.name!r} of a record is a "
                f"{type(value).__name__}: {_CONVERT}"
            )
        return record

    def replaced(self, record: Any, value: Any) -> Any:
        """Return a copy of ``record`` with the field set to ``value``; ``record`` is unchanged."""
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


class SumValues(ReduceFunction[Any], Folding):
    """Sum of the records themselves."""

    combines: Final = ("sum", None)
    """Pre-aggregation of ``operators/local_aggregation.py`` before the exchange, and its argument."""

    @override
    def reduce(self, value1: Any, value2: Any) -> Any:
        # Texts, tuples and lists could be added up as well, by mistake.
        if value2.__class__ in _NOT_NUMBERS:
            raise FunctionContractError(
                f"sum() adds numbers, but a record is a {type(value2).__name__}: say which field, as in sum(1), "
                'sum("price") or sum(lambda order: order.price)'
            )
        return value1 + value2

    @override
    def fold(self) -> Fold:
        return Fold(_SUM_VALUES, self.reduce)


class SumField(ReduceFunction[Any], Folding):
    """Sum of one field; the other fields stay those of the key's first record."""

    def __init__(self, field: int | str) -> None:
        self._name: Any = field
        self._field = Field(field, "sum")
        self._get = self._field.getter
        self.begin = self._field.with_number

    def __reduce__(self) -> tuple[Any, ...]:
        return (SumField, (self._name,))

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return a copy of ``value1`` with the sum."""
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

    @override
    def fold(self) -> Fold:
        text = _text_of_field(self._name, _SUM_ITEM, _SUM_KEY, begin="first.with_number(value)")
        return Fold(text, self.reduce, self._field)


class Extreme(ReduceFunction[Any], Folding):
    """Smallest or largest record; the earlier of two equal ones.

    Args:
        word: ``min`` or ``max``.
    """

    combines: tuple[str, Any] | None
    """As :attr:`SumValues.combines`; None: whole records have no order of their own here."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._better = _BETTER[word]
        self.combines = (word, None)

    @override
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value2 if self._better(value2, value1) else value1

    @override
    def fold(self) -> Fold:
        return Fold(Text("value", f"if value {_SIGN[self._word]} held:\n    held = value\n"), None)


class ExtremeField(Extreme):
    """Smallest or largest value of one field; the other fields stay those of the first record."""

    def __init__(self, word: str, field: int | str) -> None:
        super().__init__(word)
        self.combines = None
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

    @override
    def fold(self) -> Fold:
        text = _text_of_field(self._arguments[1], _EXTREME_ITEM, _EXTREME_KEY, sign=_SIGN[self._word])
        return Fold(text, self.reduce, self._field)


class BestBy(Extreme):
    """Reduction that keeps the whole record in which something is smallest or largest.

    Args:
        word: ``min`` or ``max``.
        by: a field, or what computes the thing from a record.
        first: whether the earlier or the later of two equal ones is kept.
    """

    def __init__(self, word: str, by: int | str | Callable[[Any], Any], first: bool) -> None:
        super().__init__(word)
        self.combines = None
        self._arguments = (word, by, first)
        self._field = None if callable(by) else Field(by, f"{word}_by")
        self._by: Callable[[Any], Any] = by if callable(by) else Field(by, f"{word}_by").getter
        self._first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return (BestBy, self._arguments)

    @override
    def reduce(self, value1: Any, value2: Any) -> Any:
        by = self._by
        try:
            if self._first:
                return value2 if self._better(by(value2), by(value1)) else value1
            return value1 if self._better(by(value1), by(value2)) else value2
        except _ABSENT as error:
            if self._field is None:
                raise
            raise self._field.absent(error, value1, value2) from error

    @override
    def fold(self) -> Fold:
        return Fold(Text("value", "held = add(held, value)\n"), self.reduce)


class Count(AggregateFunction[Any, int, int], Folding):
    """Counts."""

    combines: Final = ("count", None)

    def create_accumulator(self) -> int:
        """None seen yet."""
        return 0

    @override
    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    get_result = staticmethod(operator.pos)  # type: ignore[assignment]  # the number itself, at the price of C

    @override
    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2

    @override
    def fold(self) -> Fold:
        return Fold(Text("1", "held += 1\n"), None)


class _Of(AggregateFunction[Any, Any, Any], Folding):
    """Aggregate of what a function computes from each record; the accumulator is a tuple of none or one value."""

    has_result_of_none: Final = False
    """False: a window of which an evictor has left no record has no result; the aggregates of users have one."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self._of = of

    @override
    def create_accumulator(self) -> Any:
        return ()

    @override
    def add(self, value: Any, accumulator: Any) -> Any:
        new = (self._of(value),)
        return self.merge(accumulator, new) if accumulator else new

    @override
    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0]


def _number(value: Any) -> Any:
    if value.__class__ in _NOT_NUMBERS:
        raise FunctionContractError(
            f"sum() adds numbers, but its function returned a {type(value).__name__} for a record: {_CONVERT}"
        )
    return value


class SumOf(_Of):
    """The running sum of what a function computes."""

    @property
    def combines(self) -> tuple[str, Any]:
        """As :attr:`SumValues.combines`."""
        return ("sum", self._of)

    @override
    def add(self, value: Any, accumulator: Any) -> Any:
        new = self._of(value)
        return (accumulator[0] + new,) if accumulator else (_number(new),)

    @override
    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        return (accumulator1[0] + accumulator2[0],)

    @override
    def fold(self) -> Fold:
        return Fold(_SUM_OF, self._of, _number, first_of, _RUNNING_SUM)


class ExtremeOf(_Of):
    """The smallest or largest of what a function computes."""

    def __init__(self, word: str, of: Callable[[Any], Any]) -> None:
        super().__init__(of)
        self._word = word
        self._better = _BETTER[word]
        self.combines = (word, of)

    def merge(self, accumulator1: Any, accumulator2: Any) -> Any:
        """Return the better accumulator, the earlier of two equal ones."""
        return accumulator2 if self._better(accumulator2[0], accumulator1[0]) else accumulator1

    @override
    def fold(self) -> Fold:
        text, running = (each.format(sign=_SIGN[self._word]) for each in (_EXTREME_OF, _RUNNING_EXTREME))
        return Fold(Text("(add(value),)", text), self._of, result=first_of, running=running)
