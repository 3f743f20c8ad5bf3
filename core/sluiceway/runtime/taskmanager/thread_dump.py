"""Dump of the Python stacks of all threads of this process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import PurePath
from types import FrameType
from typing import Final

from sluiceway.clock import Clock
from sluiceway.monitoring.processes import ThreadDump, ThreadStack
from sluiceway.record_errors import step_around
from sluiceway.runtime.logging.context import LogOrigin
from sluiceway.runtime.loop.tasklet import TaskletLoop

__all__ = ["dump_threads"]

_MOST_THREADS: Final = 1_000
_MOST_FRAMES: Final = 256
_GENERATED: Final = "<sluiceway"
"""Prefix of the file names of generated loops."""
_PROGRAM: Final = "__sluiceway__"
"""Module under which the command line loads a user's file."""
_TURN: Final = TaskletLoop._step.__code__


def dump_threads(process: str, clock: Clock) -> ThreadDump:
    """Return the stacks of all threads, the calling one included. From any thread.

    Threads that Python has not started, as those of libraries in C, have no Python stack and are left out.

    Args:
        process: name of the process.
        clock: the machine's.
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    stacks = sorted(sys._current_frames().items(), key=lambda stack: (stack[0] != main, stack[0]))
    threads = [_stack(ident, frame, known.get(ident)) for ident, frame in stacks[:_MOST_THREADS]]
    return ThreadDump(process, os.getpid(), clock.now_ms(), threads)


def _stack(ident: int, innermost: FrameType, thread: threading.Thread | None) -> ThreadStack:
    frames: list[str] = []
    task = ""
    at: FrameType | None = innermost
    while at is not None:
        if at.f_code is _TURN and not task:
            task = _task(at, innermost)
        if len(frames) < _MOST_FRAMES:
            frames.append(_place(at))
        at = at.f_back
    return ThreadStack(
        name=f"thread {ident}" if thread is None else thread.name,
        ident=ident,
        native_id=None if thread is None else thread.native_id,
        daemon=thread is not None and thread.daemon,
        task=task,
        frames=frames,
    )


def _task(turn: FrameType, innermost: FrameType) -> str:
    tasklet = turn.f_locals.get("tasklet")
    if not isinstance(tasklet, LogOrigin):
        return ""  # a connection
    fields = tasklet.log_fields(step_around(innermost))
    return f"{fields.operator} ({fields.subtask + 1}/{fields.parallelism}) of {fields.job}"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    if code.co_filename.startswith(_GENERATED):
        return (
            f"sluiceway: loop of {code.co_filename.removeprefix(_GENERATED).strip(' :<>')} (line {frame.f_lineno})"
        )
    file = PurePath(code.co_filename)
    module = frame.f_globals.get("__name__", "?")
    if module == _PROGRAM:  # a name that is not in the user's file
        module = file.stem
    return f"{module}.{code.co_qualname} ({file.name}:{frame.f_lineno})"
