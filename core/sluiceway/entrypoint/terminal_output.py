"""Output of workers on the terminal on which the process that leads their job shows its progress."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from sluiceway.util.signal_output import ERASE
from sluiceway.util.visible_text import moves_cursor

__all__ = ["erase_before_output"]


def erase_before_output() -> None:
    """Have lines on stdout and stderr take the place of a line of progress, where they are terminals."""
    sys.stdout, sys.stderr = (
        _Erasing(stream) if moves_cursor(stream) else stream for stream in (sys.stdout, sys.stderr)
    )


class _Erasing:
    """Text stream whose lines begin with the erasure of what is there. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._midline = False

    def write(self, text: str) -> int:
        begins = bool(text) and not self._midline
        if text:
            self._midline = not text.endswith("\n")
        # In one write: another process may show its progress in between.
        self._stream.write(ERASE + text if begins else text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
