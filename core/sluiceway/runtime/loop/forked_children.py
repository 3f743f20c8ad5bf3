"""Processes that a user's function forks: each one ends when it returns from that function.

A forked child has the sockets, the pipes and the output of its parent. A child that returned into the engine's
loops would send what its parent sends, too, and if each record forks, each record would double the processes. So
the frame of the engine that has called the function is traced in the child, and in the child alone: as soon as the
frame goes on, the child ends. That costs the parent nothing. Children that call ``os._exit()`` or ``exec``, as
those of ``multiprocessing`` and ``subprocess`` do, never come back.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from sluiceway.record_errors import step_around
from sluiceway.util.source_paths import CORE

__all__ = ["generation", "leave_if_forked"]

_GENERATED: Final = "<sluiceway"
_ASYNCIO: Final = os.sep + "asyncio" + os.sep
_DEEPEST: Final = 10_000

_generation = 0


def generation() -> int:
    """Return the number of forks between the first process of the program and this one."""
    return _generation


def leave_if_forked(made_in: int) -> None:
    """End this process if it is a forked child of the one that created the caller's object.

    Args:
        made_in: the :func:`generation` in which it was made.
    """
    if made_in != _generation:
        _leave()


def _forked() -> None:
    """Trace the engine's frame in a forked child, so that it ends on its return. Called by Python."""
    global _generation
    _generation += 1
    frame: FrameType | None = sys._getframe(1)
    if frame is None or frame.f_code.co_filename.startswith(CORE):
        return  # a fork of the engine itself, such as that of a job manager that goes into the background
    # The innermost frame of the engine: generated loops call functions, too, and asyncio drives coroutines.
    for _ in range(_DEEPEST):
        if frame is None:
            return
        name = frame.f_code.co_filename
        if name.startswith((CORE, _GENERATED)) or _ASYNCIO in name:
            break
        frame = frame.f_back
    else:
        return
    before = sys.gettrace()
    frame.f_trace = _trace
    sys.settrace(_trace_no_call)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # a process of multiprocessing does not return, and must not be slowed down
        util.register_after_fork(_Ends(before), _Ends.trace_as_before)


class _Ends:
    """Finalizers that multiprocessing calls in its children, for the life of this child."""

    _kept: Final[list[_Ends]] = []

    def __init__(self, before: Any) -> None:
        self._before = before
        self._kept[:] = [self]  # multiprocessing holds a weak reference only

    def trace_as_before(self) -> None:
        sys.settrace(self._before)


def _trace_no_call(frame: FrameType, event: str, argument: Any) -> None:
    return None


def _trace(frame: FrameType, event: str, argument: Any) -> Any:
    sys.settrace(None)
    step = None
    with suppress(Exception):
        step = step_around(frame)
    _leave(step)


def _leave(step: str | None = None) -> None:
    of = f" of step {step!r}" if step else ""
    told = (
        f"sluiceway: process {os.getpid()} was forked by a function{of} and has come back from it: it ends here."
        " Use subprocess or multiprocessing, or call os._exit() in the child\n"
    )
    with suppress(OSError):
        os.write(2, told.encode(errors="replace"))
    # Neither atexit nor any finally clause: all that there is to close is the parent's.
    os._exit(1)


os.register_at_fork(after_in_child=_forked)
