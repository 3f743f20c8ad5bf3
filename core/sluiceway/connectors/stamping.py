"""Event times by a user's function, for sources that take one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.faults import record_loop

__all__ = ["stamped"]

T = TypeVar("T")


def stamped(values: list[T], timestamp: Callable[[T], int] | None) -> list[T] | Batch[T]:
    """The records as they are, or with the event times (ms) that ``timestamp`` gives them.

    Raises:
        FunctionContractError: it gave something other than an int.
    """
    return values if timestamp is None else Batch(values, _timestamps(values, timestamp))


@record_loop
def _timestamps(values: list[Any], fn: Callable[[Any], int]) -> list[int]:
    stamps: list[int] = []
    for value in values:
        stamp = fn(value)
        if type(stamp) is not int:
            raise FunctionContractError(
                f"timestamp= must return milliseconds since the epoch as an int; for {value!r:.100} it returned "
                f"{stamp!r:.100} ({type(stamp).__name__})"
            )
        stamps.append(stamp)
    return stamps
