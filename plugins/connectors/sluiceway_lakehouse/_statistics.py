"""Statistics of a Parquet file, as the log of a Delta table has them."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from typing import Any, Final

from pyarrow import types

from sluiceway_lakehouse._parquet_files import WrittenFile

__all__ = ["delta_statistics"]

_LONGEST: Final = 64
"""Characters of a text that are kept of a bound."""
_LAST: Final = "\U0010ffff"
"""Follows what is kept of a maximum, so that it is not below the whole."""


def delta_statistics(file: WrittenFile, columns: int) -> str:
    """Return number of rows, and least and greatest value and number of nulls by column, as JSON.

    If one of the columns has values that have no bounds in JSON, only the number of rows is returned: delta-rs 1.6
    takes a bound that is missing for one column for null, and then leaves the file out where a filter has that
    column.

    Args:
        file: the file.
        columns: of how many columns, from the first one.
    """
    metadata = file.metadata
    schema = metadata.schema.to_arrow_schema()
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:columns]:
        if types.is_list(field.type) or types.is_map(field.type):
            continue
        bounds = _bounds(metadata, paths.index(field.name)) if field.name in paths else None
        if bounds is None or field.name in file.has_nan:
            return json.dumps({"numRecords": metadata.num_rows})
        nulls[field.name], least_and_greatest = bounds
        if least_and_greatest and not types.is_binary(field.type):
            low, high = map(_json_of, least_and_greatest)
            if low is None or high is None:
                return json.dumps({"numRecords": metadata.num_rows})
            if isinstance(low, str) and types.is_string(field.type):
                low = low[:_LONGEST]
                high = high if len(high) <= _LONGEST else high[:_LONGEST] + _LAST
            least[field.name], greatest[field.name] = low, high
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    # Not escaped: delta-rs 1.6 reads the escape of a character beyond 16 bits as another one.
    return json.dumps(found, ensure_ascii=False)


def _bounds(metadata: Any, column: int) -> tuple[int, tuple[Any, Any] | None] | None:
    """Return the number of nulls, and least and greatest value if there is one; None: not known."""
    found = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    if not all(one is not None and one.has_null_count for one in found):
        return None
    nulls = sum(one.null_count for one in found)
    with_values = [one for one in found if one.num_values]
    if not with_values:
        return nulls, None
    if not all(one.has_min_max for one in with_values):
        return None
    return nulls, (min(one.min for one in with_values), max(one.max for one in with_values))


def _json_of(value: Any) -> Any:
    """Return a bound as JSON has it; None: it has none, as of decimals and infinite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")  # zoned ones are in UTC
        return text if value.tzinfo is None else f"{text}Z"
    return value.isoformat() if isinstance(value, date) else None
