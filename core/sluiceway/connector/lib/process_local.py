"""Handles that live in one process and can be pickled only inside it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from sluiceway.errors import SerializationError

__all__ = ["ProcessLocal", "living"]

_numbers = itertools.count()
_living: WeakValueDictionary[int, ProcessLocal] = WeakValueDictionary()


class ProcessLocal:
    """Base of handles through which a job returns results to the program that runs it.

    Pickling one keeps its identity, so that a pipeline can be checked and copied. Unpickling it in another
    process, where nobody reads it, is refused.
    """

    what: ClassVar[str] = "this"
    """Name in messages."""
    gathers: ClassVar[bool] = False
    """True if worker processes can send it records, by :meth:`_extend`."""
    full: bool = False
    """True if it has enough records for now."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        _living[self._number] = self

    @property
    def number(self) -> int:
        """Number that identifies it in the process that made it."""
        return self._number

    def when_wanted(self, action: Callable[[], None]) -> None:
        """Have ``action`` called once, from any thread, as soon as it is not full."""
        action()

    def _extend(self, values: Sequence[Any]) -> None:
        """Add records."""
        raise SerializationError(f"{self.what} takes no records from other processes")

    def __reduce__(self) -> tuple[Any, ...]:
        # By reference: the copy is the same handle.
        return _find, (os.getpid(), self._number, type(self).what)


def living(number: int) -> ProcessLocal | None:
    """Return the handle of this process with that number, if it still exists."""
    return _living.get(number)


def _find(pid: int, number: int, what: str) -> ProcessLocal:
    found = _living.get(number) if pid == os.getpid() else None
    if found is None:
        raise SerializationError(
            f"{what} gives results to the process that made it and cannot work in another one. Run the job with "
            "workers=0 (in this process), or write to a sink that outlives the process, such as files"
        )
    return found
