"""Loops: streams whose results return to their head."""

from __future__ import annotations

from typing import Generic, TypeVar

from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.errors import GraphError
from sluiceway.graph import Transformation

__all__ = ["IterativeStream"]

T = TypeVar("T")


class IterativeStream(DataStream[T], Generic[T]):
    """Stream of the loop's input and its feedback; returned by :meth:`DataStream.iterate`.

    Watermarks pass the loop once, and no record that comes back holds them up: it may be late by then. Only the
    one at the end of a bounded input waits until the loop is empty.

    The loop ends when its input has ended and no record is under way in it any more.
    """

    def close_with(self, feedback: DataStream[T]) -> DataStream[T]:
        """Send the records of ``feedback`` back to the head of the loop. May be called for several streams.

        Args:
            feedback: a stream made from this one.

        Returns:
            ``feedback``.

        Raises:
            GraphError: ``feedback`` does not come from this loop, or belongs to another pipeline.
        """
        stream = self._others("close_with", feedback)
        head = self._inputs[0].upstream
        if any(ref.upstream is head for ref in stream._inputs):
            raise GraphError(
                f"close_with() at {caller_location()}: every record would go round for ever; send back "
                "only what a filter() or another step of the loop lets through"
            )
        for ref in stream._inputs:
            if not _comes_from(ref.upstream, head):
                raise GraphError(
                    f"close_with() at {caller_location()}: {ref.upstream.label()} does not come from "
                    f"{head.label()}; only what was made from iterate() can go back to it"
                )
        head.feedback.extend(stream._inputs)
        return feedback


def _comes_from(t: Transformation, head: Transformation) -> bool:
    seen: set[Transformation] = set()
    todo = [t]
    while todo:
        t = todo.pop()
        if t is head:
            return True
        if t not in seen:
            seen.add(t)
            todo += [ref.upstream for ref in t.inputs]
    return False
