"""Each option of a run: its names, and what its value may be."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from sluiceway.util.instants import instant_ms

__all__ = ["LOG_LEVELS", "OPTIONS", "Option", "UnfitError", "duration_ms"]


class UnfitError(Exception):
    """A value that an option cannot take."""


# More digits than any number here has, and fewer than int() refuses.
_WHOLE: Final = re.compile(r"[+-]?\d{1,1000}")


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UnfitError
        if most is not None and value > most:
            raise UnfitError
        return value

    return parse


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UnfitError
    return value.strip()


def _place(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    place = _name(value)
    # Whoever reads it may have another working directory.
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def _directory(value: object) -> str:
    place = _place(value)
    if "://" in place:
        raise UnfitError
    return place


def _names(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise UnfitError
    return tuple(dict.fromkeys(_name(part) for part in parts))


def _one_of(*names: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in names:
            raise UnfitError
        return value.strip().lower()

    return parse


LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")

_TRUTH: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _truth(value: object) -> bool:
    known = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise UnfitError
    return known


_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def duration_ms(value: object) -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: a timedelta, a whole number of ms of any type, or a text: ``100ms``, ``1.5s``, ``2min``, ``1h``,
            ``1d``.

    Raises:
        ValueError: it is none of these, is negative, or is not a whole number of ms.
    """
    ms: float | Decimal
    if isinstance(value, timedelta):
        ms = value / timedelta(milliseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        number, unit = match.groups()
        if unit not in _UNITS_MS:
            raise ValueError(f"{value!r} has no unit that is known: {', '.join(filter(None, _UNITS_MS))}")
        ms = Decimal(number) * _UNITS_MS[unit]
    else:
        # Integers of other libraries, and floats, of which the whole ones will do.
        try:
            ms = instant_ms(value)
        except ValueError:
            ms = -1
        if ms < 0 or isinstance(value, datetime):
            raise ValueError(f"{value!r} is not a duration")
    if ms < 0 or ms != int(ms):
        raise ValueError(f"{value!r} is not a whole number of milliseconds >= 0")
    return int(ms)


def _duration(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if least < 0 and (value == -1 or value == "-1"):
            return -1
        try:
            ms = duration_ms(value)
        except ValueError:
            raise UnfitError from None
        if ms < least:
            raise UnfitError
        return ms

    return parse


_UNITS_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE: Final = re.compile(r"(\d{1,1000})\s*([a-z]*)")


def _size(value: object) -> int:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip().lower())
        if match is None or match[2] not in _UNITS_BYTES:
            raise UnfitError
        value = int(match[1]) * _UNITS_BYTES[match[2]]
    return _whole(0)(value)


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: what files and flags call it: ``buffer-timeout``. The environment says ``SLUICEWAY_BUFFER_TIMEOUT``,
            a keyword argument ``buffer_timeout``.
        field: the field of :class:`Settings` that it fills.
        expects: what its value must be, for messages.
        parse: makes the field's value of a given one.
    """

    name: str
    field: str
    expects: str
    parse: Callable[[object], Any]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "SLUICEWAY_" + self.name.upper().replace("-", "_")


def _number(name: str, field: str, least: int, most: int | None = None) -> Option:
    values = f">= {least}" if most is None else f"from {least} to {most}"
    return Option(name, field, f"a whole number {values}", _whole(least, most))


# The limit of max parallelism, which is that of key groups.
_MOST_SUBTASKS: Final = 32_768
# A worker allocates its buffers when it starts: these are 32 GiB.
_MOST_BUFFERS: Final = 1 << 20

_A_SIZE: Final = "a size such as 512mb, 2gb or a number of bytes"
_A_DURATION: Final = "a duration such as 100ms, 5s or a whole number of ms"

OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (
        _number("parallelism", "parallelism", 1, _MOST_SUBTASKS),
        _number("max-parallelism", "max_parallelism", 1, _MOST_SUBTASKS),
        _number("workers", "workers", 0, _MOST_SUBTASKS),
        Option("engine", "engine", "the name of an engine", _name),
        Option("hosted", "hosted", "true or false", _truth),
        Option("state-backend", "state_backend", "the name of a state backend", _name),
        Option("transport", "transport", "the name of a transport", _name),
        Option("chaining", "chaining", "true or false", _truth),
        Option("object-reuse", "object_reuse", "true or false", _truth),
        Option("local-aggregation", "local_aggregation", "exact, all or off", _one_of("exact", "all", "off")),
        Option("scheduler", "scheduler", "the name of a scheduling strategy", _name),
        Option("buffer-timeout", "buffer_timeout_ms", f"-1 or {_A_DURATION}", _duration(-1)),
        _number("batch-size", "batch_size", 1),
        Option("latency-interval", "latency_interval_ms", _A_DURATION, _duration(0)),
        Option("auto-watermark-interval", "auto_watermark_interval_ms", _A_DURATION, _duration(0)),
        Option("metrics", "metrics", "a list of names of metrics reporters", _names),
        Option("metrics-interval", "metrics_interval_ms", f"{_A_DURATION}, at least 1ms", _duration(1)),
        Option("restart", "restart", "a restart strategy, such as fixed-delay:3:1s", _name),
        Option("heartbeat-timeout", "heartbeat_timeout_ms", f"{_A_DURATION}, at least 100ms", _duration(100)),
        Option("cancellation-timeout", "cancellation_timeout_ms", _A_DURATION, _duration(0)),
        _number("network-buffers", "network_buffers", 2, _MOST_BUFFERS),
        Option("log-level", "log_level", "one of " + ", ".join(LOG_LEVELS), _one_of(*LOG_LEVELS)),
        Option("log-format", "log_format", "text or json", _one_of("text", "json")),
        Option("checkpoint-interval", "checkpoint_interval_ms", _A_DURATION, _duration(0)),
        Option("checkpoints", "checkpoints", "a path or URL", _place),
        Option("from", "from_checkpoint", "a path or URL", _place),
        Option("resume", "resume", "true or false", _truth),
        Option("allow-dropped-state", "allow_dropped_state", "true or false", _truth),
        Option("allow-pickles", "allow_pickles", "true or false", _truth),
        _number("checkpoint-retained", "checkpoint_retained", 1),
        Option(
            "checkpoint-mode",
            "checkpoint_mode",
            "exactly-once or at-least-once",
            _one_of("exactly-once", "at-least-once"),
        ),
        Option("checkpoint-unaligned", "checkpoint_unaligned", "true or false", _truth),
        Option("checkpoint-aligned-timeout", "checkpoint_aligned_timeout_ms", _A_DURATION, _duration(0)),
        Option("checkpoint-timeout", "checkpoint_timeout_ms", f"{_A_DURATION}, at least 1ms", _duration(1)),
        Option("checkpoint-min-pause", "checkpoint_min_pause_ms", _A_DURATION, _duration(0)),
        _number("checkpoint-max-concurrent", "checkpoint_max_concurrent", 1),
        _number("checkpoint-tolerated-failures", "checkpoint_tolerated_failures", 0),
        Option("local-recovery", "local_recovery_bytes", _A_SIZE, _size),
        Option("on-error", "on_error", "fail or skip", _one_of("fail", "skip")),
        _number("max-dead-letters", "max_dead_letters", 1),
        Option("dead-letters", "dead_letters", "a directory", _directory),
        _number("seed", "seed", -(2**63), 2**63 - 1),
    )
}
"""Every option of a run, by name."""
