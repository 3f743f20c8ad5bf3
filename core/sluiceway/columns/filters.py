"""Filters of Parquet rows: by the statistics of row groups, then row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sluiceway.errors import ConfigurationError, RejectedRecordError

__all__ = ["Alternatives", "Condition", "Filters", "RowFilter", "certain_conditions", "conditions_of"]

Filters = Sequence[Sequence[Any]]

Alternatives = tuple[tuple["Condition", ...], ...]

_COMPARISONS = {
    "=": "equal",
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_OPERATORS = (*_COMPARISONS, "in", "not in")
_MISFIT = (ValueError, TypeError, OverflowError, NotImplementedError)  # pyarrow's errors are among them


@dataclass(frozen=True)
class Condition:
    """Comparison of a column; for ``in`` and ``not in`` the value is a tuple."""

    column: str
    operator: str
    value: Any


def conditions_of(filters: Filters) -> Alternatives:
    """Return alternatives, each a conjunction of conditions. Raises ConfigurationError."""
    if not _is_list(filters) or not filters:
        raise ConfigurationError(
            f"filters={filters!r} must be a list of (column, operator, value), or a list of such lists"
        )
    conjunctions = [filters] if any(map(_is_condition, filters)) else filters
    for conjunction in conjunctions:
        if not _is_list(conjunction) or not conjunction:
            raise ConfigurationError(
                f"filters= has {conjunction!r}, which is no list of (column, operator, value)"
            )
    return tuple(tuple(map(_condition_of, conjunction)) for conjunction in conjunctions)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_condition(value: Any) -> bool:
    return _is_list(value) and len(value) > 0 and isinstance(value[0], str)


def _condition_of(given: Any) -> Condition:
    if not _is_condition(given) or len(given) != 3:
        raise ConfigurationError(f"filters= has {given!r}, which is no (column, operator, value)")
    column, operator, value = given
    if operator not in _OPERATORS:
        raise ConfigurationError(
            f"filters= has operator {operator!r} for column {column!r}; operators are {', '.join(_OPERATORS)}"
        )
    if operator in ("in", "not in"):
        if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray):
            raise ConfigurationError(f"filters= has {value!r} for {column!r} {operator}, which takes a list")
        value = tuple(value)
    for one in value if isinstance(value, tuple) else [value]:
        if one is None or (isinstance(one, float) and math.isnan(one)):
            raise ConfigurationError(f"filters= has {one!r} for column {column!r}: no comparison with it holds")
    return Condition(column, operator, value)


def certain_conditions(alternatives: Alternatives, schema: Any, of: Any) -> Alternatives | None:
    """Return those conditions that an expression means alike; None: an alternative has none.

    Args:
        alternatives: conjunctions, of which conditions may be left out.
        schema: the file's ``pyarrow.Schema``.
        of: the schema of the columns that the expressions are about.
    """
    certain = tuple(tuple(c for c in each if _is_certain(c, schema, of)) for each in alternatives)
    return certain if all(certain) else None


class RowFilter:
    """Conditions on the columns of one file.

    Args:
        alternatives: conjunctions of conditions, one of which has to hold.
        schema: the file's ``pyarrow.Schema``.
        name: name of the file in messages.

    Raises:
        RejectedRecordError: the file lacks a column, or a value does not fit its column's type.
    """

    def __init__(self, alternatives: Alternatives, schema: Any, name: str) -> None:
        self._alternatives = [[_bind(condition, schema, name) for condition in each] for each in alternatives]
        self.columns = {condition.column for each in alternatives for condition in each}

    @classmethod
    def certain(cls, alternatives: Alternatives, schema: Any, of: Any) -> RowFilter | None:
        """Return the filter of those conditions that an expression means alike; None: there are too few.

        Args:
            alternatives: conjunctions, of which conditions may be left out.
            schema: the file's ``pyarrow.Schema``.
            of: the schema of the columns that the expressions are about.
        """
        certain = certain_conditions(alternatives, schema, of)
        return None if certain is None else cls(certain, schema, "")

    def rows(self, batch: Any) -> Any:
        """Return the ascending indices of the rows to keep, as a pyarrow array."""
        import pyarrow.compute as pc

        kept: Any = None
        for tests in self._alternatives:
            mask = tests[0].mask(batch)
            for test in tests[1:]:
                mask = pc.and_kleene(mask, test.mask(batch))
            kept = mask if kept is None else pc.or_kleene(kept, mask)
        return pc.indices_nonzero(kept)

    def may_hold(self, values: Any) -> bool:
        """Return whether rows with some values in a part of the columns may be among those to keep.

        Args:
            values: a ``pyarrow.RecordBatch`` of one row, with these columns.
        """
        names = values.schema.names
        return any(
            all(test.column not in names or test.mask(values)[0].as_py() for test in tests)
            for tests in self._alternatives
        )

    def groups(self, metadata: Any, values: Any, among: Iterable[int] | None = None) -> list[int]:
        """Return the row groups whose statistics do not exclude every row.

        Args:
            metadata: of the file.
            values: those of the file's directories, as for :meth:`may_hold`.
            among: the row groups to look at; None: all of the file.
        """
        alternatives = [
            [test for test in tests if test.column not in values.schema.names]
            for tests in self._alternatives
            if all(test.column not in values.schema.names or test.mask(values)[0].as_py() for test in tests)
        ]
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        # A nested field's path can equal a column's name: then it is unclear whose statistics these are.
        leaves = {column: paths.index(column) for column in self.columns if paths.count(column) == 1}
        groups = []
        for number in range(metadata.num_row_groups) if among is None else among:
            group = metadata.row_group(number)
            kept = any(all(test.may_hold(group, leaves) for test in tests) for tests in alternatives)
            if group.num_rows and kept:
                groups.append(number)
        return groups


@dataclass(frozen=True)
class _Test:
    """Condition with its values as scalars of the column's type, in ``array`` as well for ``in``."""

    column: str
    operator: str
    type: Any
    values: list[Any]
    array: Any

    def mask(self, batch: Any) -> Any:
        import pyarrow
        import pyarrow.compute as pc

        column = batch.column(batch.schema.get_field_index(self.column))
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if self.operator in _COMPARISONS:
            return pc.call_function(_COMPARISONS[self.operator], [column, self.values[0]])
        found = pc.is_in(column, value_set=self.array)
        return found if self.operator == "in" else pc.and_(pc.invert(found), pc.is_valid(column))

    def may_hold(self, group: Any, leaves: dict[str, int]) -> bool:
        """Return False if the statistics of the row group exclude every row."""
        if self.column not in leaves:
            return True
        # Without statistics, or where they are of another type, all rows of the group are read.
        statistics = group.column(leaves[self.column]).statistics
        if statistics is None:
            return True
        if statistics.has_null_count and statistics.null_count == group.num_rows:
            return False
        bounds = _bounds(statistics, self.type)
        return bounds is None or self._may_hold_within(*bounds)

    def _may_hold_within(self, low: Any, high: Any) -> bool:
        import pyarrow

        values = self.values
        match self.operator:
            case "<":
                return not _holds(">=", low, values[0])
            case "<=":
                return not _holds(">", low, values[0])
            case ">":
                return not _holds("<=", high, values[0])
            case ">=":
                return not _holds("<", high, values[0])
            case "!=" | "not in":
                # Statistics of floats leave out NaN, which differs from every value.
                if pyarrow.types.is_floating(self.type) or not _holds("=", low, high):
                    return True
                return not any(_holds("=", low, value) for value in values)
        return any(not _holds("<", value, low) and not _holds(">", value, high) for value in values)


def _holds(operator: str, left: Any, right: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.call_function(_COMPARISONS[operator], [left, right]).as_py())


def _bind(condition: Condition, schema: Any, name: str) -> _Test:
    import pyarrow

    column, operator = condition.column, condition.operator
    count = schema.names.count(column)
    if count != 1:
        has = "no" if count == 0 else "several"
        raise RejectedRecordError(
            f"{name} has {has} column {column!r} for filters=; it has {', '.join(map(repr, schema.names))}"
        )
    of = schema.field(column).type
    if pyarrow.types.is_dictionary(of):
        of = of.value_type
    values = list(condition.value) if operator in ("in", "not in") else [condition.value]
    if pyarrow.types.is_floating(of) and any(value == 0 for value in values):
        values += [0.0, -0.0]  # is_in tells them apart
    scalars = []
    for value in values:
        try:
            scalars.append(_scalar(value, of))
        except _MISFIT as error:
            raise RejectedRecordError(
                f"{name}: filters= has {value!r} for column {column!r}, which is no value of its type {of}"
            ) from error
    try:
        test = _Test(column, operator, of, scalars, pyarrow.array([s.as_py() for s in scalars], of))
        test.mask(pyarrow.RecordBatch.from_arrays([pyarrow.array([], of)], [column]))
    except _MISFIT as error:
        raise RejectedRecordError(
            f"{name}: filters= cannot compare column {column!r} of type {of}: {error}"
        ) from error
    return test


def _is_certain(condition: Condition, schema: Any, of: Any) -> bool:
    """Return whether a condition of a file means what it means as an expression of the columns made of it.

    Expressions compare whole numbers with fractions as floats, which may round, and columns that were cast have
    another order: only values of the column's own kind are certain.
    """
    name = condition.column
    if schema.names.count(name) != 1 or name not in of.names or schema.field(name).type != of.field(name).type:
        return False
    kind = _kind_of(of.field(name).type)
    values = condition.value if condition.operator == "in" else (condition.value,)
    if kind is None or not all(type(value) in kind for value in values):
        return False
    try:
        test = _bind(condition, schema, "")
    except RejectedRecordError:
        return False
    return all(scalar.as_py() == value for scalar, value in zip(test.values, values, strict=False))


def _kind_of(of: Any) -> tuple[type, ...] | None:
    """Return the types of the values that are certain for columns of a type; None: no values are."""
    from pyarrow import types

    kinds: tuple[tuple[Callable[[Any], bool], tuple[type, ...]], ...] = (
        (types.is_boolean, (bool,)),
        (types.is_integer, (int,)),
        (types.is_floating, (float, int)),
        (types.is_string, (str,)),
        (types.is_large_string, (str,)),
        (types.is_date32, (date,)),
        (types.is_timestamp, (datetime,)),
    )
    return next((kind for is_it, kind in kinds if is_it(of)), None)


def _scalar(value: Any, of: Any) -> Any:
    """Return the value as a scalar of the type. Raises one of _MISFIT if it is not exactly that value."""
    import pyarrow

    if isinstance(value, bool) != pyarrow.types.is_boolean(of):
        raise TypeError("a boolean is no number")
    scalar = pyarrow.scalar(value, of)
    # pyarrow cuts a datetime to a date and drops a time zone; narrow floats round every literal.
    if scalar.as_py() != value and not pyarrow.types.is_float32(of):
        raise ValueError("it would change")
    return scalar


def _bounds(statistics: Any, of: Any) -> tuple[Any, Any] | None:
    """Return what no value but null and NaN is below and above; None if that is not known."""
    import pyarrow

    types = pyarrow.types
    expected = (
        (types.is_boolean, bool),
        (types.is_integer, int),
        (types.is_float32, float),
        (types.is_float64, float),
        (types.is_string, str),
        (types.is_large_string, str),
        (types.is_binary, bytes),
        (types.is_date32, date),
        (types.is_timestamp, datetime),
        (types.is_decimal, Decimal),
    )
    kind: Any = next((kind for is_it, kind in expected if is_it(of)), None)
    if kind is None or not statistics.has_min_max:
        return None
    try:
        low: Any = statistics.min
        high: Any = statistics.max
        # Some versions return the stored number of a type that pyarrow does not know in statistics.
        if not isinstance(low, kind) or not isinstance(high, kind):
            return None
        if types.is_timestamp(of) and of.unit == "ns":
            # A datetime has no nanoseconds: the bound may have been cut.
            low, high = low - timedelta(microseconds=1), high + timedelta(microseconds=1)
        return _scalar(low, of), _scalar(high, of)
    except _MISFIT:
        return None
