"""Joining of small batches of columns into one."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from sluiceway.elements import Batch

__all__ = ["as_one", "joined"]


def as_one(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one record batch, without a copy where it has one chunk."""
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)
    (one,) = table.combine_chunks().to_batches() or (batches[0],)
    return one


def joined(pieces: list[Batch[Any]]) -> Batch[Any]:
    """Return the rows of several batches of one schema as one batch, in their order."""
    data = as_one(pa.Table.from_batches([piece.columns for piece in pieces if piece.columns is not None]))
    if pieces[0].timestamps is None:
        return Batch.of_columns(data)
    stamps = array("q")
    for piece in pieces:
        stamps.extend(piece.timestamps or ())
    return Batch.of_columns(data, stamps)
