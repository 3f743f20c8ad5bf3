"""The source: counts, in splits that several subtasks can share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
)
from sluiceway.errors import ConfigurationError

__all__ = ["MyPluginSource"]

_SPLIT_SIZE = 1000


@dataclass(frozen=True)
class _Split:
    """A part of the input with the position in it: what a checkpoint keeps."""

    split_id: str
    next: int
    end: int


class MyPluginSource(Source[int]):
    """The numbers from 0 to ``count - 1``. A source only describes: it opens nothing, and can be pickled.

    Args:
        count: how many numbers.

    Raises:
        ConfigurationError: ``count`` is negative.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ConfigurationError(f"MyPluginSource(count={count}): there cannot be fewer than 0")
        self.count = count

    @property
    def boundedness(self) -> Boundedness:
        """It ends after the last number."""
        return Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Whole numbers."""
        return int

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Find the splits, or go on with those that an earlier enumerator had not handed out."""
        if restored is None:
            starts = range(0, self.count, _SPLIT_SIZE)
            restored = [_Split(f"from {n}", n, min(n + _SPLIT_SIZE, self.count)) for n in starts]
        return SimpleEnumerator(context, restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        """Make the reader of one subtask."""
        return _Reader(context)


class _Reader(SimpleReader[int]):
    _split: _Split

    def open_split(self, split: _Split) -> None:
        self._split = split

    def read(self, limit: int) -> Poll[int]:
        # Never block here: return a Wait that says what to wait for, or have a thread call context.wake().
        split = self._split
        if split.next >= split.end:
            return END_OF_INPUT
        upto = min(split.next + max(limit, 1), split.end)
        self._split = replace(split, next=upto)
        return list(range(split.next, upto))

    def position(self) -> _Split | None:
        return self._split if self._split.next < self._split.end else None

    def close_split(self) -> None:
        pass
