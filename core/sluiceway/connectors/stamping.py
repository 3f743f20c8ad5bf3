"""Event times by a user's function, for sources that take one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.faults import record_loop
from sluiceway.instants import WANTED, Instant, instant_ms

__all__ = ["stamped"]

T = TypeVar("T")


def stamped(values: list[T], timestamp: Callable[[T], Instant] | None) -> list[T] | Batch[T]:
    """The records as they are, or with the event times (ms) that ``timestamp`` gives them.

    Raises:
        FunctionContractError: it returned no point in time.
    """
    return values if timestamp is None else Batch(values, _timestamps(values, timestamp))


@record_loop
def _timestamps(values: list[Any], fn: Callable[[Any], Instant]) -> list[int]:
    stamps: list[int] = []
    for value in values:
        stamp: Any = fn(value)
        if type(stamp) is not int:
            try:
                stamp = instant_ms(stamp)
            except ValueError as error:
                hint = f"; {error}" if str(error) else ""
                raise FunctionContractError(
                    f"timestamp= must return {WANTED}; for {value!r:.100} it returned {stamp!r:.100} "
                    f"({type(stamp).__name__}){hint}"
                ) from None
        stamps.append(stamp)
    return stamps
