"""Rows in state: record batches of plain columns, and their blocks by key group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.ipc import decode, encode
from sluiceway.columns.joining import as_one
from sluiceway.columns.keys.key_columns import plain
from sluiceway.columns.schemas import shown
from sluiceway.errors import IncompatibleStateError

__all__ = [
    "LARGEST",
    "concatenated",
    "plain_rows",
    "plain_schema",
    "problem_of_rows",
    "rows_of_block",
    "write_blocks",
]

LARGEST: Final = 1 << 30
"""Bytes of a record batch beyond which nothing is added to it: texts have offsets of 32 bits."""

_TIME: Final = "event time"


def plain_schema(schema: Any) -> Any:
    """Return the schema with the types of the values in place of dictionaries and run-length encodings."""
    fields = []
    for field in schema:
        kind = field.type
        while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def plain_rows(data: Any, schema: Any) -> Any:
    """Return rows in the columns that :func:`plain_schema` has made of theirs; the same object where they are."""
    if data.schema.equals(schema):
        return data
    return pa.RecordBatch.from_arrays([plain(column) for column in data.columns], schema=schema)


def problem_of_rows(schema: Any) -> str | None:
    """Return the reason why rows cannot be kept in state; None: they can."""
    for field in plain_schema(schema):
        try:
            column: Any = pa.nulls(1, field.type)
            pa.concat_arrays([column, column]).take(pa.array([1, 0]))
        except (pa.ArrowException, NotImplementedError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            return f"column {field.name!r} of type {field.type} cannot be kept in state ({first}); cast or drop it"
    return None


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the rows of record batches of one schema as one, of :data:`LARGEST` bytes or little more."""
    return parts[0] if len(parts) == 1 else as_one(pa.Table.from_batches(list(parts)))


def write_blocks(entries: Any, keys: Sequence[int], groups: Any, stamps: Any, data: Any) -> None:
    """Write rows into a namespace of the state, a block for each key group.

    Args:
        entries: the namespace.
        keys: the key of each group's blocks.
        groups: the key group of each row.
        stamps: the event time of each row, in ms.
        data: the rows; those of a group keep their order.
    """
    order = groups.argsort(kind="stable")
    whole: Any = pa.RecordBatch.from_arrays([pa.array(stamps), *data.columns], [_TIME, *data.schema.names])
    whole = whole.take(pa.array(order))
    present, starts = np.unique(groups[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for group, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
        entries[keys[group]] = bytes(encode(whole.slice(start, end - start)))


def rows_of_block(block: bytes, schema: Any, step: str) -> tuple[Any, Any]:
    """Return the event times and the rows of a block.

    Raises:
        IncompatibleStateError: its rows have other columns.
    """
    found: Any = decode(block)
    rows = found.remove_column(0)
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        raise IncompatibleStateError(
            f"step {step!r} cannot go on with the rows in its snapshot: they have {shown(rows.schema)}, and its "
            f"input has {shown(schema)}. Undo the change, or give the step another uid, so that it begins "
            "without them"
        )
    return found.column(0).to_numpy(), pa.RecordBatch.from_arrays(rows.columns, schema=schema)
