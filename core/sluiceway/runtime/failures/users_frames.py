"""Frames of users' own code in tracebacks, told apart from those of the engine and of plugins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from traceback import FrameSummary
from types import TracebackType
from typing import Final, TypeVar

from sluiceway.util.source_paths import CORE

__all__ = ["UsersFrames", "has_frames"]

T = TypeVar("T")

_FRAME: Final = re.compile(r'  File "([^"]*)", line ')
_GENERATED: Final = "<sluiceway"
_STANDARD: Final = str(os.path.dirname(os.__file__)) + os.sep


class UsersFrames:
    """Filter of frames that keeps those of the user's own code and of what it called.

    Args:
        folders: those of plugins and of other packages that call users' functions, with a separator at the end.
    """

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self._hidden = (CORE, _GENERATED, *folders)

    def of_stack(self, stack: Iterable[FrameSummary]) -> list[FrameSummary]:
        """Return the user's frames of a stack; none if user code was not reached."""
        return self._kept(stack, lambda frame: frame.filename)

    def of_traceback(self, traceback: TracebackType | None) -> TracebackType | None:
        """Return a traceback of the user's frames; None if user code was not reached."""
        every: list[TracebackType] = []
        while traceback is not None:
            every.append(traceback)
            traceback = traceback.tb_next
        found = None
        for one in reversed(self._kept(every, lambda one: one.tb_frame.f_code.co_filename)):
            found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
        return found

    def of_lines(self, lines: Iterable[str]) -> list[str]:
        """Return the lines of a formatted traceback without those of other frames; headings and messages stay."""
        kept: list[str] = []
        within, shown = False, True
        for line in lines:
            if frame := _FRAME.match(line):
                shown = self._is_users(frame[1], within)
                within = within or shown
            # Four spaces: the source of the frame above. Everything else is a heading or a message.
            elif not line.startswith("    "):
                shown = True
            if shown:
                kept.append(line)
        return kept

    def _kept(self, frames: Iterable[T], file_of: Callable[[T], str]) -> list[T]:
        kept: list[T] = []
        for frame in frames:
            if self._is_users(file_of(frame), bool(kept)):
                kept.append(frame)
        return kept

    def _is_users(self, filename: str, within: bool) -> bool:
        # What the standard library does on our behalf is ours; what the user's code has it do is not.
        return not filename.startswith(self._hidden) and (within or not _is_standard(filename))


def has_frames(lines: Iterable[str]) -> bool:
    """Return whether lines of a formatted traceback name any frame."""
    return any(map(_FRAME.match, lines))


def _is_standard(filename: str) -> bool:
    return filename.startswith(_STANDARD) and f"-packages{os.sep}" not in filename
