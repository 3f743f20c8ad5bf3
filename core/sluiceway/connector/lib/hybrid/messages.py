"""Splits, state and events of a hybrid source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluiceway.persisted import persisted

__all__ = ["Began", "Finished", "HybridState", "Inner", "NoMore", "Part", "Ready", "split_id_of"]


@persisted("HybridSplit")
@dataclass(frozen=True, slots=True)
class Part:
    """Split of one of the sources.

    Attributes:
        index: number of the source.
        split: the split.
    """

    index: int
    split: Any

    @property
    def split_id(self) -> str:
        """Its own id behind the number of the source."""
        return split_id_of(self.index, self.split.split_id)


def split_id_of(index: int, name: str) -> str:
    """Return the id of a split of one of the sources."""
    return f"{index}:{name}"


@persisted("HybridState")
@dataclass(frozen=True, slots=True)
class HybridState:
    """State of the enumerator.

    Attributes:
        times: when reading of each source began, up to the current one, in ms since the epoch.
        current: state of the current source's enumerator; None: it has not begun.
        returned: splits of earlier sources that readers have lost.
    """

    times: tuple[int, ...]
    current: Any
    returned: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Began:
    """Event for a reader: reading of the sources began at these times."""

    times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoMore:
    """Event for a reader: no split of this source will come."""

    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Event for the enumerator: the reader has come to this source, and takes its splits."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Event for the enumerator: the reader has read this source to its end."""

    index: int


@dataclass(frozen=True, slots=True)
class Inner:
    """Event between the reader and the enumerator of one of the sources."""

    index: int
    event: Any
