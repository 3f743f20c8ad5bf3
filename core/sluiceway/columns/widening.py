"""Wider types for columns that were saved: each value stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["is_wider", "mismatches", "widened"]

_CHAINS: Final = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
)


def is_wider(old: Any, new: Any) -> bool:
    """Return if ``new`` is the same type, or one that has each value of ``old`` unchanged."""
    if old.equals(new):
        return True
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return old.id == new.id and bool(old.scale == new.scale and old.precision <= new.precision)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return is_wider(old.value_type, new.value_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return next(mismatches(old, new), None) is None
    return any(old in chain and new in chain and chain.index(old) < chain.index(new) for chain in _CHAINS)


def mismatches(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the types inside of which the new one is not wider than the old one."""
    if pa.types.is_list(old) and pa.types.is_list(new):
        yield from mismatches(old.value_type, new.value_type)
    elif pa.types.is_struct(old) and pa.types.is_struct(new):
        if [field.name for field in old] != [field.name for field in new]:
            yield old, new
            return
        for before, after in zip(old, new, strict=True):
            yield from mismatches(before.type, after.type)
    elif not is_wider(old, new):
        yield old, new


def widened(column: Any, kind: Any) -> Any:
    """Return a column in a type that :func:`is_wider`."""
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind):
        parts = [widened(part, field.type) for part, field in zip(column.flatten(), kind, strict=True)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        # flatten() leaves out what null lists have, so offsets are made anew of the lengths.
        inner = widened(column.flatten(), kind.value_type)
        lengths = column.value_lengths().fill_null(0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=mask)
    return column.cast(kind)
