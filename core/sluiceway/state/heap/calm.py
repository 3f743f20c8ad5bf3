"""Keeps Python's garbage collector from looking at much state again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["calm", "settling"]

_calm: set[object] = set()


@contextmanager
def calm() -> Iterator[None]:
    """Where many objects are made that are gone when it is over. From any thread.

    State that is replaced all the time is young, and so is a copy of it: each time when some hundred objects more
    have been made, the collector would look at all of it, in whichever thread it happens to run.
    """
    if not _calm and not gc.isenabled():
        yield  # somebody wants no collections at all
        return
    mine = object()
    _calm.add(mine)
    gc.disable()
    try:
        yield
    finally:
        _calm.discard(mine)
        if not _calm:
            gc.enable()


@contextmanager
def settling() -> Iterator[None]:
    """Where so many objects are made to stay that the collector would look at each of them several times."""
    with calm():
        try:
            yield
        finally:
            gc.freeze()  # makes old objects of them
            gc.unfreeze()
