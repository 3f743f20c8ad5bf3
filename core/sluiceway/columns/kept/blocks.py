"""Rows in state: record batches of plain columns, and their blocks by key group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.ipc import decode, encode
from sluiceway.columns.joining import as_one
from sluiceway.columns.keys.key_columns import plain
from sluiceway.columns.schemas import has_unions, shown
from sluiceway.columns.widening import is_wider, widened
from sluiceway.errors import IncompatibleStateError

__all__ = [
    "LARGEST",
    "block_of",
    "concatenated",
    "plain_rows",
    "plain_schema",
    "problem_of_rows",
    "rows_as",
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
        if has_unions(field.type):
            return f"column {field.name!r} of type {field.type} has unions, which cannot be kept in state; drop it"
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


def block_of(stamps: Any, data: Any) -> Any:
    """Return rows with their event times, in ms, as blocks have them."""
    return pa.RecordBatch.from_arrays([pa.array(stamps), *data.columns], [_TIME, *data.schema.names])


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
    whole: Any = block_of(stamps, data).take(pa.array(order))
    present, starts = np.unique(groups[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for group, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
        entries[keys[group]] = bytes(encode(whole.slice(start, end - start)))


def rows_of_block(
    block: bytes, schema: Any, step: str, keys: Collection[str] = (), *, added: bool = True
) -> tuple[Any, Any]:
    """Return the event times and the rows of a block, in the columns that they have now.

    Columns may have become wider, be gone, or be new and nullable: rows from before have null there. Not both gone
    and new, which may be another name for the same column.

    Args:
        block: from :func:`write_blocks`.
        schema: the columns.
        step: name of the step, for messages.
        keys: names of the key columns, of which none may be new or gone.
        added: False if columns that are new to the step were there before, without being saved.

    Raises:
        IncompatibleStateError: the columns have changed in another way; names them with their types.
    """
    found: Any = decode(block)
    return found.column(0).to_numpy(), rows_as(found.remove_column(0), schema, step, keys, added=added)


def rows_as(rows: Any, schema: Any, step: str, keys: Collection[str] = (), *, added: bool = True) -> Any:
    """Return saved rows in the columns that they have now, as :func:`rows_of_block` says."""
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        if problem := _problem_of_change(rows.schema, schema, keys, added=added):
            raise IncompatibleStateError(
                f"step {step!r} cannot restore the rows in its snapshot: {problem}. They have "
                f"{shown(rows.schema)}, and its input has {shown(schema)}. Undo the change, or give the step "
                "another uid, so that it begins without them"
            )
        names = set(rows.schema.names)
        columns = [
            widened(rows.column(field.name), field.type)
            if field.name in names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def _problem_of_change(old: Any, new: Any, keys: Collection[str], *, added: bool) -> str:
    """Return why saved rows cannot be read with other columns; empty: they can."""
    for field in new:
        if field.name in old.names and not is_wider(old.field(field.name).type, field.type):
            return f"column {field.name!r} was {old.field(field.name).type}, and is {field.type} now"
    gone = [field for field in old if field.name not in new.names]
    fresh = [field for field in new if field.name not in old.names]
    if gone and fresh:
        return (
            f"column {gone[0].name!r} ({gone[0].type}) is gone and column {fresh[0].name!r} ({fresh[0].type}) "
            "is new, which may be the same one"
        )
    for field in fresh:
        if not field.nullable or field.name in keys:
            kind = "part of the key" if field.name in keys else "not nullable"
            return f"column {field.name!r} ({field.type}) is new and {kind}"
        if not added:
            return f"column {field.name!r} ({field.type}) is read now, and was not saved"
    if lost := [field for field in gone if field.name in keys]:
        return f"column {lost[0].name!r} ({lost[0].type}) of the key is gone"
    return ""
