"""Joining of small batches of columns into one."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from sluiceway.elements import Batch
from sluiceway.errors import SluicewayError

__all__ = ["ColumnOverflowError", "as_one", "as_one_batch", "joined"]


class ColumnOverflowError(SluicewayError, OverflowError):
    """Values of a column do not fit into one array of its type: too many bytes of text, too large a dictionary."""


def as_one(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one record batch, without a copy where it has one chunk.

    Raises:
        ColumnOverflowError: there is no such batch; names the column.
    """
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in table.schema], schema=table.schema)
    try:
        made = table.combine_chunks().to_batches() or batches[:1]
    except pa.ArrowInvalid:
        made = []
    if len(made) != 1:  # of more text than an array can have, Arrow makes several; other types raise
        raise ColumnOverflowError(
            f"{_overflow(table)}. Cast the column to a type with larger offsets or indices, such as large_string "
            "or a dictionary of int32, or make smaller batches"
        )
    return made[0]


def _overflow(table: pa.Table) -> str:
    """Return why the rows of a table do not fit into one batch."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        begin = f"column {name!r} of type {column.type} cannot have {len(column):,} rows in one batch"
        try:
            combined: Any = column.combine_chunks()
        except pa.ArrowInvalid as error:
            return f"{begin}: {str(error).splitlines()[0].rstrip('.')}"
        if not isinstance(combined, pa.Array):
            return f"{begin}: it has {column.nbytes:,} bytes, which is more than an array can have"
    return f"{table.num_rows:,} rows do not fit into one batch"


def as_one_batch(pieces: list[Batch[Any]]) -> Batch[Any]:
    """Return the rows of several batches of one schema as one batch, in their order.

    Raises:
        ColumnOverflowError: there is no such batch; names the column.
    """
    data = as_one(pa.Table.from_batches([piece.columns for piece in pieces if piece.columns is not None]))
    if pieces[0].timestamps is None:
        return Batch.of_columns(data)
    stamps = array("q")
    for piece in pieces:
        stamps.extend(piece.timestamps or ())
    return Batch.of_columns(data, stamps)


def joined(pieces: list[Batch[Any]]) -> list[Batch[Any]]:
    """Return the rows of several batches of one schema in their order, as one batch where it can have them all."""
    try:
        return [as_one_batch(pieces)]
    except ColumnOverflowError:
        half = len(pieces) // 2
        return [*joined(pieces[:half]), *joined(pieces[half:])]
