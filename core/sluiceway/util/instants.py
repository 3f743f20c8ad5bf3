"""Points in time in arguments: ms since the epoch, whole numbers of other libraries, aware datetimes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from numbers import Real
from operator import index
from typing import Any, Final, SupportsIndex, TypeAlias

__all__ = ["WANTED", "Instant", "instant_ms", "look_like_seconds", "timer_ms"]

Instant: TypeAlias = SupportsIndex | float | datetime
"""ms since the epoch, as an int, an integer of another library or a whole float; or an aware datetime."""

WANTED: Final = "milliseconds since the epoch as an int, or an aware datetime"
"""Accepted forms of a point in time, for messages."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1

# As seconds these are the years 1973 to 2286, as milliseconds the first months of 1970.
_SECONDS_FROM: Final = 10**8
_SECONDS_TO: Final = 10**10


def instant_ms(given: Any) -> int:
    """Return ``given`` in ms since the epoch. Fractions of a ms of a datetime are cut off, towards the past.

    Args:
        given: see :data:`Instant`. ``pandas.Timestamp`` is a datetime, integers of numpy are integers; neither
            library is imported.

    Raises:
        ValueError: it is none of these; the message is a hint at what to do, or empty.
    """
    if type(given) is int:
        return given
    if isinstance(given, datetime):
        # pandas.NaT is a datetime that does not equal itself.
        if given != given:
            raise ValueError("it is no point in time; leave such records out with a filter before")
        if given.tzinfo is None or given.utcoffset() is None:
            raise ValueError(
                "it has no time zone, so it could be any of several times; for UTC, add "
                ".replace(tzinfo=datetime.timezone.utc)"
            )
        return int((given - _EPOCH) // _MS)
    if isinstance(given, bool):
        raise ValueError("")
    try:
        number: int = index(given)
    except TypeError:
        pass
    else:
        return number
    if isinstance(given, Real):
        real = float(given)
        if real.is_integer():
            return int(real)
        if look_like_seconds(real):
            raise ValueError("it looks like seconds: int(1000 * seconds) gives milliseconds")
        raise ValueError("it is not a whole number of milliseconds: round it with int()")
    raise ValueError(_hint(given))


def _hint(given: Any) -> str:
    if given is None:
        return "every record needs one; leave records without it out with a filter before"
    if isinstance(given, str):
        return "datetime.datetime.fromisoformat() reads texts with a time zone"
    if isinstance(given, date):
        return "a date is no point in time: combine it with a time and a time zone"
    if type(given).__name__ == "datetime64":
        return "convert it with int(value.astype('datetime64[ms]').astype(int))"
    if isinstance(given, timedelta):
        return "a timedelta is a duration: add it to a point in time"
    return ""


def timer_ms(what: str, given: Any) -> int:
    """Return the time of a timer in ms since the epoch.

    Args:
        what: the noun for messages, such as ``a timer's timestamp``.
        given: see :data:`Instant`.

    Raises:
        TypeError: it is no point in time.
        ValueError: it is before the beginning or beyond the end of time.
    """
    try:
        ms = instant_ms(given)
    except ValueError as error:
        hint = f"; {error}" if str(error) else ""
        raise TypeError(
            f"{what} is a whole number of ms since the epoch, or an aware datetime, not {given!r:.60} "
            f"({type(given).__name__}){hint}"
        ) from None
    if ms > _LAST:
        raise ValueError(
            f"time comes to an end before a timer at {ms} could fire: {_LAST} is the last one, for the end of the "
            "input"
        )
    if ms < _FIRST:
        raise ValueError(f"time begins after a timer at {ms}: {_FIRST} is the first one")
    return ms


def look_like_seconds(ms: float) -> bool:
    """Return whether a timestamp is likely in seconds: as ms it is in early 1970, as seconds a recent date."""
    return _SECONDS_FROM <= ms < _SECONDS_TO
