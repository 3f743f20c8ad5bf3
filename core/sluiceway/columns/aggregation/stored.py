"""Format of the aggregates of a slice in the state: chunks of its keys, and changes since these were written.

A block is an Arrow IPC stream with the rows of one key group. Its schema has metadata: the keys and aggregates,
and for a chunk the number of the last changes that it includes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.numpy_arrays import array_of, numpy_of

__all__ = ["INCLUDES", "LAYOUT", "Stored", "latest", "open_stored"]

LAYOUT: Final = b"sluiceway.aggregates"
"""Metadata: keys and aggregates, as JSON."""

INCLUDES: Final = b"sluiceway.changes"
"""Metadata of a chunk: the number of the last changes before it."""


class Stored(NamedTuple):
    """Block of one key group.

    Attributes:
        group: the key group.
        number: a chunk, from 0 on; or changes, of which the first are -1, and the next -2.
        includes: of a chunk, how many changes it includes.
        metadata: keys and aggregates as JSON; None: it is no block of aggregates.
        rows: the rows; their first column is the position.
    """

    group: int
    number: int
    includes: int
    metadata: bytes | None
    rows: Any

    @property
    def rank(self) -> int:
        """Of the rows of one position, those of the highest rank count."""
        return 2 * self.includes + 1 if self.number >= 0 else -2 * self.number


def open_stored(group: int, number: int, block: bytes) -> Stored:
    """Return a block of the state. Raises ValueError if it is damaged."""
    try:
        with pa.ipc.open_stream(block) as reader:
            metadata, rows = reader.schema.metadata or {}, reader.read_next_batch()
        rows.validate(full=True)  # arrays are made of it without another look at the lengths of texts and lists
        return Stored(group, number, int(metadata.get(INCLUDES, b"0")), metadata.get(LAYOUT), rows)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"no block of aggregates: {error}") from error


def latest(blocks: Iterable[Stored]) -> list[Any]:
    """Return the rows of one slice that are not replaced by later ones, as record batches.

    The columns of batches may differ: a sum of integers is in one part of 64 bits, or in several of 32.
    """
    found: list[Any] = []
    groups: dict[int, list[Stored]] = {}
    for block in blocks:
        groups.setdefault(block.group, []).append(block)
    for some in groups.values():
        if all(block.number >= 0 for block in some):
            found += [block.rows for block in some]
            continue
        some.sort(key=lambda block: -block.rank)
        seen = np.zeros(0, np.int64)
        kept = []
        for block in some:
            at = numpy_of(block.rows.column(0))
            places = np.flatnonzero(~np.isin(at, seen))
            if len(places):
                kept.append(block.rows if len(places) == len(at) else block.rows.take(array_of(places)))
                seen = np.concatenate([seen, at])
        found += reversed(kept)
    return found
