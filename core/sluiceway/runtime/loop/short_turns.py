"""Shorter switch interval of the interpreter's lock while a thread needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

__all__ = ["short_turns"]

_lock: Final = Lock()
_wanted: Final[list[float]] = []
_usual_s = 0.0


@contextmanager
def short_turns(seconds: float) -> Iterator[None]:
    """Set the switch interval of the interpreter's lock to ``seconds`` within this context; the default is 5 ms.

    Contexts may overlap, in any threads: the shortest interval counts, and the last exit restores the original.
    """
    global _usual_s
    with _lock:
        if not _wanted:
            _usual_s = sys.getswitchinterval()
        _wanted.append(seconds)
        sys.setswitchinterval(min(_usual_s, *_wanted))
    try:
        yield
    finally:
        with _lock:
            _wanted.remove(seconds)
            sys.setswitchinterval(min([_usual_s, *_wanted]))
