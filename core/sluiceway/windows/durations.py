"""Durations in the arguments of assigners, triggers and evictors."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from sluiceway.config.settings import duration_ms
from sluiceway.errors import ConfigurationError

__all__ = ["Duration", "milliseconds", "offset_milliseconds", "positive_milliseconds", "shown"]

Duration: TypeAlias = timedelta | int | str
"""A timedelta, a whole number of ms, or a text such as ``"10s"``, ``"1.5h"``, ``"1d"``."""

_LONGEST_MS = 1 << 62
"""Half of the times of 64 bits on one side of the epoch: sums and differences of two durations fit."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def milliseconds(what: str, value: Duration) -> int:
    """Return ``value`` in ms, not negative. Raises ConfigurationError that begins with ``what``."""
    try:
        ms = duration_ms(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what}: {error}; give a timedelta, ms, or a text such as '10s'") from None
    if ms > _LONGEST_MS:
        raise ConfigurationError(f"{what}: is longer than {_LONGEST_MS} ms, 146 million years")
    return ms


def positive_milliseconds(what: str, value: Duration) -> int:
    """Return ``value`` in ms, at least 1. Raises ConfigurationError that begins with ``what``."""
    ms = milliseconds(what, value)
    if ms == 0:
        raise ConfigurationError(f"{what}: must be longer than 0 ms")
    return ms


def offset_milliseconds(what: str, value: Duration) -> int:
    """Return ``value`` in ms, of either sign. Raises ConfigurationError that begins with ``what``."""
    if isinstance(value, str) and value.strip().startswith("-"):
        return -milliseconds(what, value.strip()[1:])
    if isinstance(value, timedelta):
        return -milliseconds(what, -value) if value < timedelta() else milliseconds(what, value)
    if not isinstance(value, str) and value < 0:
        return -milliseconds(what, -value)
    return milliseconds(what, value)


def shown(ms: int) -> str:
    """Return a duration for a message or a plan, in the largest unit that fits."""
    for unit, size in _UNITS:
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
