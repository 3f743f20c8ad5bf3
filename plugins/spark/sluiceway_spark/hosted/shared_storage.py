"""Check that executors see the directories of the job manager's checkpoints."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["SharedPlaces", "unseen"]

_MARK: Final = ".sluiceway-seen-"
_OLD_S: Final = 86_400.0


class SharedPlaces:
    """Checkpoint directories, with a marker file in those that are written to, which workers look for.

    Args:
        written: path or URL of where checkpoints are kept; None: nowhere.
        read: path or URL of what the job begins with; None: nothing.

    Attributes:
        seen: what a worker must see: paths of files and directories.
    """

    def __init__(self, written: str | None, read: str | None) -> None:
        self._written = _path(written)
        self._marks: list[Path] = []
        began = _path(read)
        self.seen: list[str] = [] if began is None else [str(began)]

    def mark(self) -> None:
        """Create the marker. A directory that cannot be written to is reported by the checkpoint storage."""
        if self._written is None:
            return
        with suppress(OSError):
            self._written.mkdir(parents=True, exist_ok=True)
            for left in self._written.glob(_MARK + "*"):  # by drivers that were killed
                if time.time() - left.stat().st_mtime > _OLD_S:
                    left.unlink()
            mark = self._written / f"{_MARK}{uuid.uuid4().hex}"
            mark.touch()
            self._marks.append(mark)
            self.seen.append(str(mark))

    def unmark(self) -> None:
        """Remove the marker."""
        for mark in self._marks:
            with suppress(OSError):
                mark.unlink()
        self._marks.clear()


def unseen(paths: Iterable[str]) -> str | None:
    """Return the first directory that is not the job manager's, called in a worker; None: all are."""
    for path in paths:
        if not os.path.exists(path):
            directory, name = os.path.split(path)
            return directory if name.startswith(_MARK) else path
    return None


def _path(place: str | None) -> Path | None:
    if place is None:
        return None
    place = place.removeprefix("file://")
    return None if "://" in place else Path(place).absolute()
