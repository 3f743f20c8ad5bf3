"""Mark of pickling that only tries whether an object can be sent, as ``check`` does, and sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["is_trial", "trial"]

_trial: Final = ContextVar("trial", default=False)


@contextmanager
def trial() -> Iterator[None]:
    """Mark what is pickled inside as tried."""
    before = _trial.set(True)
    try:
        yield
    finally:
        _trial.reset(before)


def is_trial() -> bool:
    """Return whether pickling is only tried, so that a ``__getstate__`` must not change anything outside."""
    return _trial.get()
