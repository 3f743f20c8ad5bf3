"""Event times by a user's function, for sources that accept one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.record_errors import record_loop
from sluiceway.util.instants import WANTED, Instant, instant_ms

__all__ = ["stamped"]

T = TypeVar("T")

_WHOLE = frozenset({int})


def stamped(values: list[T], timestamp: Callable[[T], Instant] | None) -> list[T] | Batch[T]:
    """Return the records, with the event times (ms) of ``timestamp`` if it is given.

    Raises:
        FunctionContractError: it returned no point in time.
    """
    return values if timestamp is None else Batch(values, _timestamps(values, timestamp))


@record_loop
def _timestamps(values: list[Any], fn: Callable[[Any], Instant]) -> list[int]:
    stamps: list[Any] = []
    for value in values:
        stamps.append(fn(value))
    return stamps if _WHOLE.issuperset(map(type, stamps)) else _converted(values, stamps)


@record_loop
def _converted(values: list[Any], stamps: list[Any]) -> list[int]:
    converted: list[int] = []
    for value, stamp in zip(values, stamps, strict=True):
        try:
            converted.append(instant_ms(stamp))
        except ValueError as error:
            hint = f"; {error}" if str(error) else ""
            raise FunctionContractError(
                f"timestamp= must return {WANTED}; for {value!r:.100} it returned {stamp!r:.100} "
                f"({type(stamp).__name__}){hint}"
            ) from None
    return converted
