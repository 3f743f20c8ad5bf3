"""Tables and frames as sources of a stream in columns."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import pyarrow as pa

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.columns.joining import as_one
from sluiceway.connector import Source
from sluiceway.connector.lib import CollectionSource
from sluiceway.elements import Columns

__all__ = ["source_of"]


def source_of(given: Any) -> tuple[Source[Any], pa.Schema]:
    """Return a source of columns, and its schema.

    Args:
        given: a ``pyarrow.Table`` or ``RecordBatch``, a frame of pandas, Polars or Narwhals, or any object with
            ``__arrow_c_stream__()``; or a source that has columns, see :meth:`Source.in_columns`.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(given, Source):
        found = given.in_columns()
        if found is None:
            raise TypeError(
                f"table() at {caller_location()}: {type(given).__name__} reads records, not columns: use "
                "source(...).to_columns(type)"
            )
        return found
    rows = _rows(given)
    return CollectionSource(Columns(rows)), rows.schema


def _rows(given: Any) -> pa.RecordBatch:
    if isinstance(given, nw.DataFrame | nw.LazyFrame):
        given = given.to_native()
    if hasattr(given, "collect") and not hasattr(given, "__arrow_c_stream__"):
        given = given.collect()
    if isinstance(given, pa.RecordBatch):
        return given
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
        given = pa.Table.from_pandas(given, preserve_index=False)
    elif not isinstance(given, pa.Table) and hasattr(given, "__arrow_c_stream__"):
        given = pa.table(given)
    if not isinstance(given, pa.Table):
        raise TypeError(
            f"table() at {caller_location()} takes a pyarrow.Table or RecordBatch, a frame of pandas, Polars or "
            f"Narwhals, or a source in columns, not {describe(given)}"
        )
    return as_one(given)
