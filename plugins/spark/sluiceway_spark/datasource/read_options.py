"""Options of a read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from sluiceway.connector import Boundedness, Source
from sluiceway.errors import ConfigurationError
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway_spark.datasource.named_objects import made_by

__all__ = ["SourceTold"]

_OPTIONS: Final = ("source", "positions", "parallelism", "timestamp", "maxRecords", "maxWait", "maxTime")
_STREAM_ONLY: Final = ("positions", "maxrecords", "maxwait", "maxtime")


@dataclass(frozen=True)
class SourceTold:
    """The options of a read, checked.

    Attributes:
        source: what to read.
        readers: how many readers share it.
        timestamp: the column for event times, or None.
        positions: where a stream keeps how far it is, or None.
        limits: of the batches of a stream.
    """

    source: Source[Any]
    readers: int
    timestamp: str | None
    positions: str | None
    limits: BatchLimits

    @classmethod
    def of(cls, options: Mapping[str, str], parallelism: int) -> SourceTold:
        """Check them and make the source; ``parallelism`` is for where they do not say.

        Raises:
            ConfigurationError: they cannot be used; says which.
        """
        given = {name.lower(): value for name, value in options.items()}
        arguments = {name[len("source.") :]: given.pop(name) for name in list(given) if name.startswith("source.")}
        if "path" in given:
            raise ConfigurationError(
                f"format 'sluiceway' reads what option source names: call load() without a path, and give "
                f"{given['path']!r} to the function that makes the source, as option source.NAME"
            )
        known = {name.lower(): name for name in _OPTIONS}
        if odd := [name for name in given if name not in known]:
            near = get_close_matches(odd[0], known, 1)
            raise ConfigurationError(
                f"format 'sluiceway' has no option {odd[0]!r} for reading: "
                f"{f'did you mean {known[near[0]]}? ' if near else ''}There are {', '.join(_OPTIONS)}, and "
                "source.NAME for arguments of the function that makes the source"
            )
        if not given.get("source"):
            raise ConfigurationError(
                "option source says what to read: 'package.module:function', or the name of a connector"
            )
        source: Source[Any] = made_by("source", given["source"], Source, arguments)  # type: ignore[type-abstract]
        if source.uses_events:
            raise ConfigurationError(
                f"source {source.name} has readers and an enumerator that send each other events, which Spark's "
                "data sources cannot: read each of its sources by itself"
            )
        most = source.max_readers
        readers = _number(given, "parallelism", 1, min(parallelism, most or parallelism))
        if most is not None and readers > most:
            raise ConfigurationError(
                f"option parallelism={readers}: source {source.name} has at most {most} readers"
            )
        default = BatchLimits()
        wait = _seconds(given, "maxWait", default.wait_s)
        limits = BatchLimits(
            records=_number(given, "maxRecords", 1, default.records),
            wait_s=wait,
            linger_s=min(wait, default.linger_s),
            time_s=_seconds(given, "maxTime", default.time_s),
        )
        return cls(source, readers, given.get("timestamp") or None, given.get("positions"), limits)

    def check_batch(self, options: Mapping[str, str]) -> None:
        """Raise ConfigurationError unless a DataFrame that is no stream can be made."""
        if self.source.boundedness is not Boundedness.BOUNDED:
            raise ConfigurationError(
                f"source {self.source.name} does not end: read it with spark.readStream, not with spark.read"
            )
        given = {name.lower(): name for name in options}
        if odd := [name for name in _STREAM_ONLY if name in given]:
            raise ConfigurationError(
                f"option {given[odd[0]]} is for spark.readStream: here everything is read at once"
            )

    def place(self) -> str:
        """Return the directory of a stream's progress. Raises ConfigurationError."""
        if not self.positions:
            raise ConfigurationError(
                "option positions is missing: a directory or URL that driver and executors see, for how far the "
                "stream is, such as one beside the query's checkpointLocation, which Spark does not tell sources"
            )
        return self.positions if "://" in self.positions else os.path.abspath(os.path.expanduser(self.positions))


def _number(given: Mapping[str, str], name: str, least: int, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigurationError(f"option {name}={text!r} must be a whole number from {least} on")
    return number


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"option {name}={text!r} must be a number of seconds above 0")
    return seconds
