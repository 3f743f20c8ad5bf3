"""Tracebacks of failed jobs as programs get them: the user's frames, those of the engine only on demand."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

from sluiceway.errors import SluicewayError
from sluiceway.runtime.failures.explanation import NOTED
from sluiceway.runtime.failures.users_frames import UsersFrames, has_frames
from sluiceway.runtime.messages.pickling import RemoteTraceback

__all__ = ["without_engine_frames"]

_VARIABLE: Final = "SLUICEWAY_TRACEBACK"
_MOST_CAUSES: Final = 20


def without_engine_frames(error: BaseException) -> BaseException:
    """Return an error whose traceback, and those of its causes, have no frame of the engine or of a plugin.

    The frame that is left last is the user's, also for a debugger. An error without a frame of the user's keeps
    none if it was raised on purpose, the last one if it was raised by a step, and otherwise all of them.
    With ``SLUICEWAY_TRACEBACK=1`` all frames stay.
    """
    if os.environ.get(_VARIABLE, "") not in ("", "0"):
        return error
    users = _users_frames()
    one: BaseException | None = error
    # Bounded, as causes can form a circle.
    for _ in range(_MOST_CAUSES):
        if one is None:
            break
        one.__traceback__ = users.of_traceback(one.__traceback__) or _instead(one)
        if isinstance(one.__cause__, RemoteTraceback):
            _shorten(one, one.__cause__, users)
        one = one.__cause__ or one.__context__
    return error


def _instead(error: BaseException) -> TracebackType | None:
    """Return the frames of an error that has none of the user's."""
    # Ctrl-C is raised on purpose, too; the frames of a worker's error are in its cause.
    if isinstance(error, (SluicewayError, KeyboardInterrupt)) or isinstance(error.__cause__, RemoteTraceback):
        return None
    last = error.__traceback__
    if getattr(error, NOTED, False):
        while last is not None and last.tb_next is not None:
            last = last.tb_next
    return last


def _shorten(error: BaseException, remote: RemoteTraceback, users: UsersFrames) -> None:
    """Leave the engine's frames out of the text of a worker, and the text if an error of ours has no others."""
    lines = users.of_lines(remote.remote_traceback.splitlines())
    if has_frames(lines):
        error.__cause__ = RemoteTraceback("\n".join(lines))
    elif isinstance(error, SluicewayError):
        error.__cause__ = None


def _users_frames() -> UsersFrames:
    from sluiceway.plugins import default_manager

    return UsersFrames(default_manager().folders())
