"""Sink that returns the results to the program that runs the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from sluiceway.connector import Sink, SinkWriter, WriterContext
from sluiceway.connector.lib.process_local import ProcessLocal

__all__ = ["CollectSink", "Collected"]

T = TypeVar("T")

_SHOWN: Final = 20
"""Records in the repr."""
_LONGEST: Final = 200


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class Collected(ProcessLocal, Sequence[T], Generic[T]):
    """Records that a :class:`CollectSink` has received, in the order of arrival: a sequence that only grows.

    Can be read while the job runs, from any thread, and afterwards. It compares equal to a list or tuple with
    the same elements. Records of several runs follow one another; :meth:`clear` empties it. Its repr has the first
    twenty.
    """

    what = "collect()"
    gathers = True

    def __init__(self) -> None:
        super().__init__()
        self._values: list[T] = []

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Collected, list, tuple)):
            return self._values == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(_short, self._values[:_SHOWN]))
        more = len(self._values) - _SHOWN
        return f"Collected([{shown}, ... and {more:,} more])" if more > 0 else f"Collected([{shown}])"

    def clear(self) -> None:
        """Forget what has come so far."""
        self._values.clear()

    def _extend(self, values: Sequence[T]) -> None:
        self._values.extend(values)


class CollectSink(Sink[T]):
    """Sink that keeps all records in memory, in a :class:`Collected` of the program that runs the job.

    Works only where the job runs in that same process. After a failure and a restart, records since the last
    checkpoint are in it twice.

    Args:
        collected: receives the records; None: a new one.

    Attributes:
        collected: the received records.
    """

    def __init__(self, collected: Collected[T] | None = None) -> None:
        self.collected: Collected[T] = Collected() if collected is None else collected

    @property
    def follows_input(self) -> bool:
        """True: a stream of one subtask keeps its order."""
        return True

    def create_writer(self, context: WriterContext) -> SinkWriter[T]:
        """Make a writer to the one collection."""
        return _CollectWriter(self.collected)


class _CollectWriter(SinkWriter[Any]):
    def __init__(self, collected: Collected[Any]) -> None:
        self._collected = collected

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._collected._extend(values)
