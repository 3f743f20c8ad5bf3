"""Directories of a partitioned table, as Hive and Spark name them: ``day=2026-01-02/country=nl``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

from sluiceway.errors import ConfigurationError

__all__ = ["check_partitions", "split"]

_NONE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = {ord(c): f"%{ord(c):02X}" for c in "\"#%'*/:=?\\{[]^\x7f"} | {i: f"%{i:02X}" for i in range(32)}


def check_partitions(schema: Any, names: Sequence[str], where: str) -> None:
    """Raise ConfigurationError where these columns cannot be directories."""
    import pyarrow as pa

    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ConfigurationError(f"{where}: partition_by= has {twice[0]!r} twice")
    for name in names:
        if name not in schema.names:
            raise ConfigurationError(
                f"{where}: partition_by= has {name!r}, the columns are {', '.join(schema.names)}"
            )
        kind = schema.field(name).type
        is_ = pa.types
        if not (is_.is_integer(kind) or is_.is_string(kind) or is_.is_boolean(kind) or is_.is_date(kind)):
            raise ConfigurationError(
                f"{where}: partition_by= has {name!r}, which is {kind}; integers, strings, booleans and dates can "
                "be directories"
            )
    if len(names) == len(schema.names):
        raise ConfigurationError(f"{where}: partition_by= has all columns, which leaves none for the files")


def split(batch: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    """Return directory (``""`` without columns) and rows of each partition, without the partition columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not names:
        return [("", batch)]
    rest = batch.drop_columns(list(names))
    code: Any = None
    texts: list[list[str]] = []
    for name in names:
        column = batch.column(name).dictionary_encode(null_encoding="encode")
        texts.append([_text(value) for value in column.dictionary.to_pylist()])
        index = column.indices.cast(pa.int64())
        code = index if code is None else pc.add(pc.multiply(code, len(texts[-1])), index)
    counts = pc.value_counts(code)
    found = sorted(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    if len(found) > 1:
        rest = rest.take(pc.sort_indices(code))  # a stable sort
    parts = []
    start = 0
    for number, count in found:
        places = []
        for column_texts in reversed(texts):
            number, place = divmod(number, len(column_texts))
            places.append(column_texts[place])
        directory = "/".join(f"{_escape(n)}={t}" for n, t in zip(names, reversed(places), strict=True))
        parts.append((directory, rest.slice(start, count)))
        start += count
    return parts


def _text(value: Any) -> str:
    if value is None or value == "":
        return _NONE
    if isinstance(value, bool):
        return str(value).lower()
    return _escape(value.isoformat() if isinstance(value, dt.date) else str(value))


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)
