"""Look-up of columns by a coroutine function: the checks of its arguments, and its step."""

from __future__ import annotations

import typing
from typing import Any

import pyarrow as pa

from sluiceway.api.async_arguments import async_step
from sluiceway.api.location import caller_location
from sluiceway.api.table.arguments import check_names
from sluiceway.columns.schemas import schema_of
from sluiceway.columns.transforms import has_look_up
from sluiceway.errors import GraphError, SerializationError
from sluiceway.steps.column_lookup import ColumnLookupStep
from sluiceway.types import parameter_type

__all__ = ["lookup_step"]

_METHOD = "lookup_async"


def lookup_step(
    entering: pa.Schema,
    fn: Any,
    on: str,
    schema: Any,
    how: str,
    timeout: Any,
    capacity: Any,
    ordered: Any,
    retry: Any,
) -> ColumnLookupStep:
    """Return the step of :meth:`TableStream.lookup_async`, whose errors it raises."""
    checked = async_step(_METHOD, fn, timeout, capacity, ordered, retry)
    where = f"{_METHOD}() at {caller_location()}"
    check_names(_METHOD, (on,), entering)
    key = entering.field(on)
    if not has_look_up(key.type) or pa.types.is_dictionary(key.type) or pa.types.is_null(key.type):
        raise GraphError(
            f"{where}: column {on!r} has {key.type}, whose values cannot be looked up: cast it before"
        )
    if how not in ("inner", "left"):
        raise GraphError(f"{where}: how={how!r:.40}; it is 'inner' or 'left'")
    try:
        given = schema_of(schema)
    except SerializationError as error:
        raise GraphError(f"{where}: schema=: {error}") from None
    if on in given.names and given.field(on).type != key.type:
        raise GraphError(
            f"{where}: column {on!r} has {key.type}, in schema= {given.field(on).type}: make them equal"
        )
    others = [field for field in given if field.name != on]
    if not others:
        raise GraphError(f"{where}: schema= has no column beside {on!r}, so that nothing would be added")
    if both := sorted({field.name for field in others}.intersection(entering.names)):
        raise GraphError(f"{where}: both have a column {both[0]!r}: rename() or drop() one")
    found = pa.schema([pa.field(on, key.type), *others])
    added = [field.with_nullable(True) if how == "left" else field for field in others]
    method = "async_invoke" if hasattr(fn, "async_invoke") else None
    hint = parameter_type(fn, 0, method)
    return ColumnLookupStep(
        checked.fn,
        checked.timeout_ms,
        checked.capacity,
        checked.ordered,
        checked.retry,
        name=on,
        found=found,
        schema=pa.schema([*entering, *added]),
        outer=how == "left",
        listed=(typing.get_origin(hint) or hint) is list,
    )
