"""Garbage collector of the process: fewer passes while records flow, none while much state is made or copied.

The settings of the collector belong to the whole process, and so to the program that runs a job. Everything here
holds for a time, counts those who want it at the same time in any thread, and then restores what it found.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

__all__ = ["freeze_at_exit", "freeze_between_tasks", "freeze_imports", "gc_frozen", "gc_paused", "seldom"]

_SELDOM: Final = 50_000
# Of CPython 3.11 and 3.12, and of later versions. Any other number was chosen by the program.
_DEFAULTS: Final = (700, 2000)

# Python 3.12 counts some hundred objects of its own as frozen. A program that freezes has more than ten thousand.
_FROZEN: Final = 2_000

_SECOND: Final = 2

# Absent outside CPython.
_get_threshold: Callable[[], tuple[int, ...]] | None = getattr(gc, "get_threshold", None)
_set_threshold: Callable[..., Any] | None = getattr(gc, "set_threshold", None)
_freeze: Callable[[], Any] | None = getattr(gc, "freeze", None)

# Reentrant: a signal handler may run a job while its thread is in here.
_lock = RLock()
_running: set[object] = set()
_found: tuple[int, ...] | None = None
_imports_are_frozen = False
_tasks = 0

_calm: set[object] = set()


@contextmanager
def seldom() -> Iterator[None]:
    """Collect after every 50,000 new objects within this context, instead of after 700. From any thread.

    The records of the batches under way are some ten thousand objects, nearly all of which are gone a moment
    later. By its default, Python looks through the newest after every 700, and through many of them several
    times: up to a third of the time of a job.

    Thresholds that the program has chosen itself stay, and so does a collector that it has disabled. Nothing is
    frozen: freezing resets the count that leads to a full collection, so that a program that runs many short jobs
    would never have one, and ``gc.unfreeze`` would also release what the program has frozen.
    """
    mine = object()
    try:
        _begin(mine)
        yield
    finally:
        _end(mine)


def _begin(mine: object) -> None:
    global _found
    if _get_threshold is None or _set_threshold is None:
        return
    with _lock:
        _running.add(mine)
        if len(_running) > 1:
            return
        now = _get_threshold()
        if now[0] in _DEFAULTS:
            _found = now
            _set_threshold(_SELDOM, *now[1:])


def _end(mine: object) -> None:
    with _lock:
        _running.discard(mine)
        if not _running:
            _restore()


def _restore() -> None:
    global _found
    found, _found = _found, None
    if found is None or _get_threshold is None or _set_threshold is None:
        return
    # Another number is that of a user's function or module, which came later and has its way.
    if _get_threshold() == (_SELDOM, *found[1:]):
        _set_threshold(*found)


def freeze_imports() -> None:
    """Exclude everything that exists by now from collections, for good. For processes that are our own."""
    global _imports_are_frozen
    gc.collect()
    if _freeze is not None:
        _freeze()
        _imports_are_frozen = True


def freeze_between_tasks() -> None:
    """Note that a task begins, in a process that is lent to one task after the other; the second freezes.

    Spark has a full collection after each task of a Python worker. With pandas and pyarrow it looks through some
    95,000 objects that tasks have imported and that never go away. When the second task begins they are all there,
    and the collection after the first one has just removed what was garbage.
    """
    global _tasks
    _tasks += 1
    if _tasks == _SECOND and _freeze is not None:
        _freeze()


def freeze_at_exit() -> None:
    """Leave out the collections with which the interpreter ends, at the end of a process that is our own.

    With pandas and pyarrow there they take up to 0.2 s of each worker. By then everything is closed, and the
    operating system frees the memory.
    """
    if _freeze is not None:
        _freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collector while many objects are made that do not outlive this context. From any thread.

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
def gc_frozen() -> Iterator[None]:
    """Freeze what is made in this context: so many objects that the collector would scan each several times."""
    with gc_paused():
        try:
            yield
        finally:
            # What the program has frozen must stay so, and nothing unfreezes a part.
            if _freeze is not None and (_imports_are_frozen or gc.get_freeze_count() < _FROZEN):
                _freeze()  # makes old objects of them
                gc.unfreeze()


def _forked() -> None:
    """Restore the program's settings in a forked child: whoever would have done so is a thread of the parent."""
    global _lock
    _lock = RLock()
    _running.clear()
    _restore()
    if _calm:
        _calm.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
