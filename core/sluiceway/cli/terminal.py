"""Abilities of terminals, one line at the bottom of one that changes, and the output that must not run into it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Any, TextIO

from sluiceway.util.signal_output import ERASE
from sluiceway.util.visible_text import cut_to, is_terminal, moves_cursor, visible_line

__all__ = ["LiveLine", "shows_colours"]


def shows_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours, and ``NO_COLOR`` does not turn them off."""
    return moves_cursor(stream) and not os.environ.get("NO_COLOR")


class LiveLine:
    """Line of a terminal that is overwritten repeatedly. From any thread.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._shown = False
        self._midline = False

    def show(self, text: str) -> None:
        """Write ``text`` in the place of what is there, cut to the terminal's width."""
        with self._lock:
            if self._midline:
                return  # other output has begun a line; this one would end up in its middle
            # A line that fills the width would wrap, and only its last part be erased.
            width = get_terminal_size().columns - 1
            self._stream.write(ERASE + cut_to(visible_line(text), width))
            self._stream.flush()
            self._shown = True

    def erase(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._shown:
                self._stream.write(ERASE)
                self._stream.flush()
                self._shown = False

    @contextmanager
    def guard_output(self) -> Iterator[None]:
        """Within this context output to ``sys.stdout`` and ``sys.stderr`` takes the line away first.

        Only where they are terminals: nothing that goes to a file or a pipe is touched.
        """
        out, err = sys.stdout, sys.stderr
        guarded = [_Guarded(s, self) if is_terminal(s) else s for s in (out, err)]
        sys.stdout, sys.stderr = guarded
        try:
            yield
        finally:
            self.erase()
            # Only what is still ours: a program may have put streams of its own there.
            if sys.stdout is guarded[0]:
                sys.stdout = out
            if sys.stderr is guarded[1]:
                sys.stderr = err

    def write_through(self, stream: TextIO, text: str) -> int:
        """Write other output to its stream."""
        with self._lock:
            self.erase()
            written = stream.write(text)
            if text:
                self._midline = not text.endswith("\n")
                # Else it would reach the terminal after a later showing of the line.
                stream.flush()
            return written


class _Guarded:
    """Text stream whose writes take the lock of the live line. Everything else is the stream's own."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write_through(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
