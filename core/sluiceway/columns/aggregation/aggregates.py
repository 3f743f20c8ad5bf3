"""Aggregates of columns, as a pipeline names them, and their check against a schema.

::

    from sluiceway.table import agg

    table.key_by("user").window(...).aggregate(total=agg.sum("price"), orders=agg.count())

Nulls are skipped, as in SQL. An aggregate of no value is null, except for counts (0) and lists (empty).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator
from sluiceway.columns.aggregation.collected import Collected
from sluiceway.columns.aggregation.custom import Custom
from sluiceway.columns.aggregation.moments import Moments
from sluiceway.columns.aggregation.pairs import Distinct, Greatest, Sketch
from sluiceway.columns.aggregation.picked import Extreme, Picked
from sluiceway.columns.aggregation.sums import Averaged, Counted, Summed
from sluiceway.columns.schemas import has_unions
from sluiceway.errors import ConfigurationError, FunctionContractError, GraphError
from sluiceway.util.name_hints import hint_for, refuse_in_module, similar

__all__ = [
    "RUNNING",
    "Aggregate",
    "BoundAggregate",
    "ColumnAggregate",
    "collect",
    "count",
    "count_distinct",
    "custom",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "quantile",
    "stddev",
    "sum",
    "top_k",
    "variance",
]


RUNNING: Final = frozenset(
    {"count", "count_distinct", "first", "last", "max", "mean", "min", "stddev", "sum", "variance"}
)
"""Kinds of aggregates that have running results."""


class ColumnAggregate(ABC):
    """Aggregate of a user's own, with accumulators as numpy arrays. Picklable.

    An accumulator is one element of each array. Rows with a null in one of the columns are left out. Results must
    not depend on how rows are cut into batches: add with ``np.add.at`` and the like, which add row by row.

    Attributes:
        result_type: Arrow type of the results.
    """

    result_type: Any = None

    @abstractmethod
    def accumulators(self) -> Mapping[str, Any]:
        """Return by name the value of an empty accumulator: a number or bool, whose type the array gets."""

    @abstractmethod
    def update(self, state: Mapping[str, Any], at: Any, *columns: Any) -> None:
        """Add rows to accumulators.

        Args:
            state: the arrays by name, to be changed in place.
            at: index of each row's accumulator; indices repeat.
            columns: the columns as numpy arrays, which cannot be changed: times as integers, texts as objects.
        """

    @abstractmethod
    def merge(self, state: Mapping[str, Any], at: Any, other: Mapping[str, Any]) -> None:
        """Add accumulators to others.

        Args:
            state: the arrays by name, to be changed in place.
            at: index of the accumulator to which each element of ``other`` is added; none repeats.
            other: arrays by name, as long as ``at``.
        """

    @abstractmethod
    def result(self, state: Mapping[str, Any]) -> Any:
        """Return one result per accumulator, as a numpy or Arrow array."""


@dataclass(frozen=True)
class BoundAggregate:
    """Aggregate of a stream with a known schema.

    Attributes:
        aggregate: the aggregate.
        columns: its columns.
        result_type: Arrow type of its results.
        create: returns empty accumulators.
    """

    aggregate: Aggregate
    columns: tuple[str, ...]
    result_type: Any
    create: Callable[[], Accumulator]


@dataclass(frozen=True)
class Aggregate:
    """Aggregate of a column by its name.

    Attributes:
        kind: name of the function.
        columns: names of its columns.
        options: its other arguments.
        function: the user's aggregate, for :func:`custom`.
    """

    kind: str
    columns: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    function: ColumnAggregate | None = field(default=None, compare=False)

    def __str__(self) -> str:
        arguments = [*map(repr, self.columns), *(f"{name}={value!r}" for name, value in self.options)]
        return f"{self.kind}({', '.join(arguments)})"

    def option(self, name: str) -> Any:
        """Return one of the options."""
        return dict(self.options)[name]

    def bind(self, schema: Any, where: str) -> BoundAggregate:
        """Check the aggregate.

        Args:
            schema: the Arrow schema of the rows.
            where: the place of the mistake, for errors: ``step 'x'``.

        Raises:
            GraphError: a column does not exist, or has a type of which there is no such aggregate.
        """
        for name in self.columns:
            if name not in schema.names:
                near = similar(name, schema.names)
                hint = f": did you mean {near!r}?" if near else "."
                raise GraphError(
                    f"{where}: {self} names column {name!r}, which the rows do not have{hint} They have "
                    f"{', '.join(schema.names)}"
                )
        kinds = [_decoded(schema.field(name).type) for name in self.columns]
        result_type, create = _BINDERS[self.kind](self, *kinds) or (None, None)
        if create is None:
            raise GraphError(
                f"{where}: {self} is not there for column {self.columns[0]!r} of type {kinds[0]}: it takes "
                f"{_TAKES[self.kind]}. Cast the column before it, or use another aggregate"
            )
        return BoundAggregate(self, self.columns, result_type, create)


def _decoded(kind: Any) -> Any:
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


# ---- the functions of a pipeline ------------------------------------------------------------------------------


def count(column: str | None = None) -> Aggregate:
    """Return the number of rows, or of the values of a column that are not null, as int64."""
    return Aggregate("count", () if column is None else (_name(column),))


def sum(column: str) -> Aggregate:  # noqa: A001 (SQL's name)
    """Return the sum: int64 of signed integers and bools, uint64, float64, decimal(38), or a duration.

    Sums of integers and decimals are exact; one that does not fit fails the job. Floats are added in the order of
    arrival.
    """
    return Aggregate("sum", (_name(column),))


def mean(column: str) -> Aggregate:
    """Return the mean: float64, of decimals a decimal with at least six digits behind the point."""
    return Aggregate("mean", (_name(column),))


def min(column: str) -> Aggregate:  # noqa: A001
    """Return the least value, of the column's type. NaN is greater than any number."""
    return Aggregate("min", (_name(column),))


def max(column: str) -> Aggregate:  # noqa: A001
    """Return the greatest value, of the column's type. NaN is greater than any number."""
    return Aggregate("max", (_name(column),))


def variance(column: str, ddof: int = 1) -> Aggregate:
    """Return the variance as float64; null of no more than ``ddof`` values."""
    return Aggregate("variance", (_name(column),), (("ddof", _ddof(ddof)),))


def stddev(column: str, ddof: int = 1) -> Aggregate:
    """Return the standard deviation as float64; null of no more than ``ddof`` values."""
    return Aggregate("stddev", (_name(column),), (("ddof", _ddof(ddof)),))


def first(column: str) -> Aggregate:
    """Return the value that arrived first and is not null."""
    return Aggregate("first", (_name(column),))


def last(column: str) -> Aggregate:
    """Return the value that arrived last and is not null."""
    return Aggregate("last", (_name(column),))


def count_distinct(column: str) -> Aggregate:
    """Return the exact number of distinct values, as int64. State holds each of them."""
    return Aggregate("count_distinct", (_name(column),))


def top_k(column: str, k: int) -> Aggregate:
    """Return a list of the ``k`` greatest values, the greatest first."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ConfigurationError(f"top_k({column!r}, {k!r}): k must be a whole number of at least 1")
    return Aggregate("top_k", (_name(column),), (("k", k),))


def quantile(column: str, q: float, accuracy: float = 0.01) -> Aggregate:
    """Return a quantile as float64, from a sketch with a bounded relative error.

    Args:
        column: a column of numbers.
        q: the quantile, from 0 to 1; 0.5 is the median.
        accuracy: the largest relative error. Half of it takes twice the state.
    """
    for name, given in (("q", q), ("accuracy", accuracy)):
        if not isinstance(given, int | float):
            raise ConfigurationError(f"quantile({column!r}): {name}={given!r} must be a number")
    if not 0 <= q <= 1:
        raise ConfigurationError(f"quantile({column!r}, {q!r}): q must be from 0 to 1")
    if not 0.0001 <= accuracy < 1:
        raise ConfigurationError(f"quantile(accuracy={accuracy!r}): must be at least 0.0001 and below 1")
    return Aggregate("quantile", (_name(column),), (("q", q), ("accuracy", accuracy)))


def collect(column: str) -> Aggregate:
    """Return a list of all values that are not null, in the order of arrival. State holds each of them."""
    return Aggregate("collect", (_name(column),))


def custom(function: ColumnAggregate, *columns: str) -> Aggregate:
    """Return the results of an aggregate of your own.

    Args:
        function: the aggregate.
        columns: names of the columns that its ``update`` receives.
    """
    if not isinstance(function, ColumnAggregate):
        raise FunctionContractError(f"custom() takes an object of a subclass of ColumnAggregate, not {function!r}")
    if function.result_type is None:
        raise FunctionContractError(
            f"{type(function).__name__} has no result_type: set it to the Arrow type of what result() returns"
        )
    return Aggregate("custom", tuple(map(_name, columns)), (("function", type(function).__name__),), function)


def _name(column: str) -> str:
    if not isinstance(column, str):
        raise ConfigurationError(f"an aggregate names its column by a text, not by {column!r}")
    return column


def _ddof(ddof: int) -> int:
    if not isinstance(ddof, int) or not 0 <= ddof < 1 << 31:
        raise ConfigurationError(f"ddof={ddof!r}: must be a whole number from 0 to {(1 << 31) - 1}")
    return ddof


# ---- types ----------------------------------------------------------------------------------------------------

_Bound = tuple[Any, Callable[[], Accumulator]] | None


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _bind_count(aggregate: Aggregate, *kinds: Any) -> _Bound:
    return pa.int64(), Counted


def _bind_sum(aggregate: Aggregate, kind: Any) -> _Bound:
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        result: Any = pa.int64()
    elif pa.types.is_unsigned_integer(kind):
        result = pa.uint64()
    elif pa.types.is_floating(kind):
        result = pa.float64()
    elif pa.types.is_decimal128(kind):
        result = pa.decimal128(38, kind.scale)
    elif pa.types.is_duration(kind):
        result = kind
    else:
        return None
    return result, lambda: Summed(kind, result, str(aggregate))


def _bind_mean(aggregate: Aggregate, kind: Any) -> _Bound:
    if pa.types.is_decimal128(kind):
        result: Any = pa.decimal128(38, kind.scale if kind.scale > 6 else 6)
    elif _is_number(kind) or pa.types.is_boolean(kind):
        result = pa.float64()
    else:
        return None
    return result, lambda: Averaged(kind, result, str(aggregate))


def _bind_extreme(aggregate: Aggregate, kind: Any) -> _Bound:
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
        return None
    return kind, lambda: Extreme(kind, greatest=aggregate.kind == "max")


def _bind_moments(aggregate: Aggregate, kind: Any) -> _Bound:
    if not (_is_number(kind) or pa.types.is_decimal128(kind)):
        return None
    return pa.float64(), lambda: Moments(aggregate.option("ddof"), root=aggregate.kind == "stddev")


def _bind_picked(aggregate: Aggregate, kind: Any) -> _Bound:
    if has_unions(kind):  # values that are no numbers are kept as Python objects
        return None
    return kind, lambda: Picked(kind, last=aggregate.kind == "last")


def _bind_distinct(aggregate: Aggregate, kind: Any) -> _Bound:
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        return None
    return pa.int64(), lambda: Distinct(kind)


def _bind_greatest(aggregate: Aggregate, kind: Any) -> _Bound:
    if not (_is_number(kind) or pa.types.is_temporal(kind)) or pa.types.is_interval(kind):
        return None
    return pa.list_(kind), lambda: Greatest(kind, aggregate.option("k"))


def _bind_sketch(aggregate: Aggregate, kind: Any) -> _Bound:
    if not (_is_number(kind) or pa.types.is_decimal128(kind)):
        return None
    return pa.float64(), lambda: Sketch(aggregate.option("q"), aggregate.option("accuracy"))


def _bind_collected(aggregate: Aggregate, kind: Any) -> _Bound:
    if has_unions(kind):  # Arrow does not take() them, which state that is restored or combined has to
        return None
    return pa.list_(kind), lambda: Collected(kind)


def _bind_custom(aggregate: Aggregate, *kinds: Any) -> _Bound:
    function: Any = aggregate.function
    for name, value in function.accumulators().items():
        if np.asarray(value).dtype.kind not in "biuf" or np.ndim(value):
            raise FunctionContractError(
                f"accumulators() of {type(function).__name__} gives {name!r} the value {value!r}: it must be one "
                "number or bool"
            )
    return function.result_type, lambda: Custom(function, str(aggregate), function.result_type)


_BINDERS: Final[Mapping[str, Callable[..., _Bound]]] = {
    "count": _bind_count,
    "sum": _bind_sum,
    "mean": _bind_mean,
    "min": _bind_extreme,
    "max": _bind_extreme,
    "variance": _bind_moments,
    "stddev": _bind_moments,
    "first": _bind_picked,
    "last": _bind_picked,
    "count_distinct": _bind_distinct,
    "top_k": _bind_greatest,
    "quantile": _bind_sketch,
    "collect": _bind_collected,
    "custom": _bind_custom,
}

_NUMBERS: Final = "integers, floats and decimals of 128 bits"

_TAKES: Final[Mapping[str, str]] = {
    "sum": f"{_NUMBERS}, bools and durations",
    "mean": f"{_NUMBERS} and bools",
    "min": "all but nulls, lists, structs and maps",
    "max": "all but nulls, lists, structs and maps",
    "first": "all but unions",
    "last": "all but unions",
    "collect": "all but unions",
    "variance": _NUMBERS,
    "stddev": _NUMBERS,
    "count_distinct": "all but lists, structs and maps",
    "top_k": "integers, floats, dates and times",
    "quantile": _NUMBERS,
}

if not TYPE_CHECKING:  # a type checker would take it for leave to import anything

    def __getattr__(name: str) -> NoReturn:
        refuse_in_module(__name__, name, __all__, hint_for("agg", name))
