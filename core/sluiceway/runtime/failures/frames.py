"""Frames of tracebacks, whose local variables refer to the state of an attempt that has failed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

__all__ = ["clear_frames"]


def clear_frames(error: BaseException) -> None:
    """Release the local variables of an exception's frames, and of those that led to it; the lines stay.

    Frames that have not ended keep theirs.
    """
    # All frames first: those that are cleared may be all that refers to others.
    for frame in list(_frames(error)):
        if _has_ended(frame):
            frame.clear()
            # Before Python 3.13, whoever has read them has left a copy, which another look brings up to date.
            _ = frame.f_locals


def _has_ended(frame: FrameType) -> bool:
    # Before Python 3.13, clear() closes a generator or coroutine that may go on: one that has caught the exception
    # itself. A frame refers to its code only once it has ended; until then the variables are not its own.
    return any(known is frame.f_code for known in gc.get_referents(frame))


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Return the frames of an exception and of those that led to it, and the callers that they refer to."""
    seen: set[FrameType] = set()
    for each in _related(error):
        for frame, _ in walk_tb(each.__traceback__):
            called: FrameType | None = frame
            while called is not None and called not in seen:
                seen.add(called)
                yield called
                called = called.f_back


def _related(error: BaseException) -> Iterator[BaseException]:
    """Return an exception with its causes, its contexts and those in a group, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += each.__cause__, each.__context__
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions
