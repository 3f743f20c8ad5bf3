"""Tables and frames as sources of a stream in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import narwhals as nw
import pyarrow as pa
import pyarrow.compute

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.api.table.arguments import check_names
from sluiceway.columns.joining import ColumnOverflowError, as_one
from sluiceway.columns.schemas import from_outside, without_views
from sluiceway.columns.transforms import Lookup, comparable, has_look_up, repeats
from sluiceway.connector import Source
from sluiceway.connector.lib import CollectionSource
from sluiceway.connector.products import check_properties
from sluiceway.elements import Columns
from sluiceway.errors import GraphError

__all__ = ["lookup_of", "rows_of", "source_of"]

_compute: Any = pyarrow.compute

_MOST_BYTES: Final = (1 << 31) - 1
"""Bytes of the texts of an array whose offsets have 32 bits."""


def source_of(given: Any) -> tuple[Source[Any], pa.Schema]:
    """Return a source of columns, and its schema.

    Args:
        given: a ``pyarrow.Table`` or ``RecordBatch``, a frame of pandas, Polars or Narwhals, or any object with
            ``__arrow_c_stream__()``; or a source that has columns, see :meth:`Source.in_columns`.

    Raises:
        GraphError: two columns have one name.
        TypeError: it is none of these.
    """
    if isinstance(given, Source):
        check_properties(given)
        found = given.in_columns()
        if found is None:
            raise TypeError(
                f"table() at {caller_location()}: {type(given).__name__} reads records, not columns: use "
                "source(...).to_columns(type)"
            )
        _check_different(found[1].names)
        return found[0], without_views(found[1])
    rows = rows_of(given)
    _check_different(rows.schema.names)
    return CollectionSource(Columns(rows)), rows.schema


def _check_different(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        double = ", ".join(sorted({repr(name) for name in names if names.count(name) > 1}))
        raise GraphError(f"table() at {caller_location()}: columns must have different names; twice: {double}")


def lookup_of(given: Any, on: str, schema: pa.Schema, *, outer: bool) -> Lookup:
    """Return the transform of :meth:`TableStream.lookup`, whose errors it raises."""
    rows, here = rows_of(given, "lookup"), caller_location()
    check_names("lookup", (on,), schema)
    check_names("lookup", (on,), rows.schema)
    keys: Any = rows.column(on)
    if keys.type != schema.field(on).type:
        raise GraphError(
            f"lookup() at {here}: column {on!r} has {schema.field(on).type}, in the table {keys.type}: cast one"
        )
    if not has_look_up(keys.type):
        raise GraphError(
            f"lookup() at {here}: column {on!r} has {keys.type}, by which rows cannot be found: unnest() "
            "structs, cast it, or compute a column of another type"
        )
    keys = comparable(keys)
    if repeats(keys):
        raise GraphError(f"lookup() at {here}: a value of column {on!r} occurs twice in the table")
    others = [name for name in rows.schema.names if name != on]
    if both := sorted(set(others).intersection(schema.names)):
        raise GraphError(f"lookup() at {here}: both have a column {both[0]!r}: rename() or drop() one")
    return Lookup(on, keys, rows.select(others), outer)


def rows_of(given: Any, method: str = "table") -> pa.RecordBatch:
    """Return the rows of a table or frame. Raises TypeError: it is none, which ``method`` takes."""
    if isinstance(given, nw.DataFrame | nw.LazyFrame):
        given = given.to_native()
    if hasattr(given, "collect") and not hasattr(given, "__arrow_c_stream__"):
        given = given.collect()
    if isinstance(given, pa.RecordBatch):
        return from_outside(given)
    if type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns"):
        try:
            given = pa.Table.from_pandas(given, preserve_index=False)
        except (pa.ArrowException, ValueError) as error:
            why = ". ".join(map(str, error.args))
            raise GraphError(
                f"{method}() at {caller_location()}: the frame has no columns of Arrow: {why}"
            ) from None
    elif not isinstance(given, pa.Table) and hasattr(given, "__arrow_c_stream__"):
        given = pa.table(given)
    if not isinstance(given, pa.Table):
        raise TypeError(
            f"{method}() at {caller_location()} takes a pyarrow.Table or RecordBatch, or a frame of pandas, "
            f"Polars or Narwhals, not {describe(given)}"
        )
    given = from_outside(given)
    try:
        return as_one(_usual(given))
    except ColumnOverflowError as error:
        raise GraphError(f"{method}() at {caller_location()}: {error}") from None


def _usual(rows: pa.Table) -> pa.Table:
    """Return rows with one type for texts and one for bytes: each library of frames has its own.

    A column has the large one if the other cannot have the texts of all rows in one array.
    """
    # Columns are cast one by one: pyarrow refuses to cast a struct that is null and has a field that is not
    # nullable, even to its own type, and tables of Spark's have such columns.
    for at, field in enumerate(rows.schema):
        for plain, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
            if field.type in (plain, large):
                kind = plain if _text_bytes(rows.column(at)) <= _MOST_BYTES else large
                if field.type != kind:
                    rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


def _text_bytes(column: Any) -> int:
    """Return the bytes of the texts of a column; an upper bound where that is enough to know that they fit."""
    if column.nbytes <= _MOST_BYTES:
        return int(column.nbytes)
    return int(_compute.sum(_compute.binary_length(column)).as_py() or 0)
