"""Keeps Python's garbage collector from looking at much state again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Calm", "settling"]

_calm: set[int] = set()


class Calm:
    """While there is one, the collector leaves alone what there was when it was made. From any thread.

    A copy of a large dict is a young object, and each of the next collections of young ones would look at all
    that is in it, in whichever thread they happen to run. What comes later is collected as ever.
    """

    __slots__ = ()

    def __init__(self) -> None:
        _calm.add(id(self))
        gc.freeze()

    def __del__(self) -> None:
        # No lock, because this may run at any time. Where two threads meet, collections are slow, and that is all.
        _calm.discard(id(self))
        if not _calm:
            gc.unfreeze()


@contextmanager
def settling() -> Iterator[None]:
    """Where so many objects are made to stay that the collector would look at each of them several times."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        Calm()  # makes old objects of them
        if enabled:
            gc.enable()
