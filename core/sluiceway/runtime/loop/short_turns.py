"""Shorter turns of threads at the interpreter's lock, for as long as somebody needs them."""

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
    """Let a thread that computes pass the interpreter's lock on after ``seconds``, where Python has 5 ms.

    Contexts may overlap, in any threads: the shortest turn counts, and after the last of them it is as it was.
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
