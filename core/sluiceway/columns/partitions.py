"""Split of rows in columns by the values of some columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.numpy_arrays import array_of, numpy_of

__all__ = ["partitions"]


def partitions(data: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    """Yield the values of each partition and its rows, in the order of their first rows.

    Rows keep their order, and lose the columns that they are split by. Null is a value like any other.

    Args:
        data: rows, at least one.
        names: columns to split by, at least one, which are no lists, structs or maps.
    """
    codes = np.zeros(data.num_rows, np.int64)
    for name in names:
        column: Any = data.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        encoded = column.dictionary_encode("encode")
        # "encode" gives null an entry of the dictionary.
        codes = codes * len(encoded.dictionary) + numpy_of(encoded.indices)
        # Numbered anew for each column, so that no product of their numbers overflows.
        found, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    rows = data.select([name for name in data.schema.names if name not in names])
    heads = data.select(list(names)).take(array_of(first)).to_pylist()
    if len(found) == 1:
        yield heads[0], rows
        return
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(found)))
    for at in np.argsort(first, kind="stable").tolist():
        start = ends[at - 1] if at else 0
        # A copy: a slice would keep the memory of the whole batch for as long as the rows are kept.
        yield heads[at], rows.take(array_of(order[start : ends[at]]))
