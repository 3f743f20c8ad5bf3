"""Joins of two keyed streams in columns, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.columns.kept.blocks import plain_schema, problem_of_rows
from sluiceway.columns.routing import ColumnKey
from sluiceway.columns.schemas import shown
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.functions import OutputTag
from sluiceway.steps.column_joins import ColumnAsOfJoinStep, ColumnIntervalJoinStep
from sluiceway.windows.durations import Duration, milliseconds, offset_milliseconds
from sluiceway.windows.durations import shown as shown_duration

if TYPE_CHECKING:
    from sluiceway.api.table.keyed import KeyedTable
    from sluiceway.api.table.stream import TableStream

__all__ = ["asof_joined", "interval_joined"]


def interval_joined(
    left: KeyedTable,
    right: object,
    lower: Duration,
    upper: Duration,
    how: Literal["inner", "left", "right", "full"],
    suffix: str | None,
    tags: tuple[object, object],
) -> TableStream:
    """Add the step: see :meth:`KeyedTable.interval_join`."""
    method = "interval_join"
    other = _checked_right(method, left, right)
    if how not in ("inner", "left", "right", "full"):
        raise ConfigurationError(
            f"{method}(how={how!r:.40}) at {caller_location()}: how is 'inner', 'left', 'right' or 'full'"
        )
    where = f"{method}({lower!r}, {upper!r}) at {caller_location()}"
    low, high = offset_milliseconds(where, lower), offset_milliseconds(where, upper)
    if low > high:
        raise ConfigurationError(f"{where}: the lower bound is above the upper one")
    left_late, right_late = _checked_tags(method, tags)
    if left_late is not None and right_late is not None and left_late.name == right_late.name:
        raise GraphError(f"{where}: left_late and right_late are one side output, of rows with other columns")
    step = ColumnIntervalJoinStep(
        _joined_schema(
            method, left, other, suffix, nullable=how in ("left", "full"), left_nullable=how in ("right", "full")
        ),
        ColumnKey(left._names),
        ColumnKey(other._names),
        left._schema,
        other._schema,
        left_late,
        lower=low,
        upper=high,
        right_late=right_late,
        how=how,
    )
    name = f"interval_join({shown_duration(low)}, {shown_duration(high)})"
    time_column = _later_column(left, other, low, high, how, suffix)
    late = [(left_late, left), (right_late, other)]
    return left._then(step, name, f"{method}()", second=other, late=late, time_column=time_column)


def _later_column(
    left: KeyedTable, right: KeyedTable, low: int, high: int, how: str, suffix: str | None
) -> str | None:
    """Return the column of the event times of the result; None: there is none.

    Those of pairs are the later ones of both rows, those of rows without a partner are their own.
    """
    if high <= 0 and how in ("inner", "left"):
        return left._time_column
    name = right._time_column
    if low < 0 or how not in ("inner", "right") or name is None or name in right._names:
        return None
    return f"{name}{suffix}" if name in left._schema.names else name


def asof_joined(
    left: KeyedTable,
    right: object,
    tolerance: Duration | None,
    how: Literal["left", "inner"],
    suffix: str | None,
    left_late: object,
) -> TableStream:
    """Add the step: see :meth:`KeyedTable.asof_join`."""
    method = "asof_join"
    other = _checked_right(method, left, right)
    if how not in ("left", "inner"):
        raise ConfigurationError(f"{method}(how={how!r:.40}) at {caller_location()}: how is 'left' or 'inner'")
    where = f"{method}(tolerance={tolerance!r}) at {caller_location()}"
    (tag,) = _checked_tags(method, (left_late,))
    step = ColumnAsOfJoinStep(
        _joined_schema(method, left, other, suffix, nullable=how == "left"),
        ColumnKey(left._names),
        ColumnKey(other._names),
        left._schema,
        other._schema,
        tag,
        tolerance=None if tolerance is None else milliseconds(where, tolerance),
        how=how,
    )
    late = [(tag, left)]
    return left._then(step, method, f"{method}()", second=other, late=late, time_column=left._time_column)


def _checked_right(method: str, left: KeyedTable, right: object) -> KeyedTable:
    from sluiceway.api.table.keyed import KeyedTable

    where = f"{method}() at {caller_location()}"
    if not isinstance(right, KeyedTable):
        hint = "; call key_by(...) on the other stream first" if hasattr(right, "key_by") else ""
        raise TypeError(f"{where} takes a stream in columns by key, not {describe(right)}{hint}")
    if right._pipeline is not left._pipeline:
        raise GraphError(f"{where}: the streams belong to different pipelines")
    kinds = [[plain_schema(t._schema).field(name).type for name in t._names] for t in (left, right)]
    if kinds[0] != kinds[1]:
        one, other = (
            ", ".join(f"{name}: {kind}" for name, kind in zip(t._names, of, strict=True))
            for t, of in zip((left, right), kinds, strict=True)
        )
        raise GraphError(
            f"{where}: the keys are {one} on the left and {other} on the right; make their types equal, in the "
            'same order, as in with_columns(id=col("id").cast(...)) before key_by()'
        )
    for side, t in (("left", left), ("right", right)):
        # Both sides keep whole rows in their state.
        if problem := problem_of_rows(t._schema):
            raise GraphError(f"{where}: {side} {problem}")
    return right


def _joined_schema(
    method: str,
    left: KeyedTable,
    right: KeyedTable,
    suffix: str | None,
    *,
    nullable: bool,
    left_nullable: bool = False,
) -> pa.Schema:
    """Return the columns of the left rows and, but for the key, of the right ones.

    Args:
        method: name of the method, for messages.
        left: the left stream.
        right: the right stream.
        suffix: added to names of right columns that the left rows have, too.
        nullable: whether right columns may be null because a row has no partner.
        left_nullable: the same for left columns but the key.

    Raises:
        GraphError: a name would be there twice.
        TypeError: ``suffix`` is no text.
    """
    where = f"{method}() at {caller_location()}"
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise TypeError(f"{where}: suffix is a text, as in suffix='_right', not {describe(suffix)}")
    fields = [
        field.with_nullable(True) if left_nullable and field.name not in left._names else field
        for field in plain_schema(left._schema)
    ]
    have = {field.name for field in fields}
    rest = [field for field in plain_schema(right._schema) if field.name not in right._names]
    double = [field.name for field in rest if field.name in have]
    if double and suffix is None:
        raise GraphError(
            f"{where}: both streams have columns {', '.join(map(repr, double))}: give suffix='_right' for those "
            "of the right one, or rename() or drop() them before key_by()"
        )
    for field in rest:
        name = f"{field.name}{suffix}" if field.name in double else field.name
        if name in have:
            raise GraphError(
                f"{where}: the result would have two columns {name!r}; the left has {shown(left._schema)}, the "
                f"right {shown(right._schema)}; give another suffix, or rename()"
            )
        have.add(name)
        fields.append(pa.field(name, field.type, field.nullable or nullable))
    return pa.schema(fields)


def _checked_tags(method: str, tags: Sequence[object]) -> tuple[OutputTag[Any] | None, ...]:
    checked: list[OutputTag[Any] | None] = []
    for tag in tags:
        if tag is not None and not isinstance(tag, OutputTag):
            raise TypeError(
                f'{method}() at {caller_location()} takes an OutputTag for late rows, as in OutputTag("late"), '
                f"not {describe(tag)}"
            )
        checked.append(tag)
    return tuple(checked)
