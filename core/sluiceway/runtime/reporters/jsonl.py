"""Metrics reporter that appends JSON lines to a file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from sluiceway.clock import Clock, SystemClock
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway.util.overriding import override

__all__ = ["PATH_VARIABLE", "JsonLinesReporter"]

PATH_VARIABLE: Final = "SLUICEWAY_METRICS_FILE"
"""The environment variable that names the file."""


class JsonLinesReporter(MetricsReporter):
    """Metrics reporter that appends one JSON object per report to a file.

    The keys are those of :class:`~sluiceway.metrics.JobMetrics`, and ``time_ms``, the time of the report in ms
    since the epoch. Infinite values and NaN, which JSON cannot express, are written as ``null``.

    Args:
        path: the file, created if missing; None: the one that ``SLUICEWAY_METRICS_FILE`` names.
        clock: clock for ``time_ms``; None: the system clock.

    Raises:
        ConfigurationError: no file was named.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, clock: Clock | None = None) -> None:
        named = os.environ.get(PATH_VARIABLE, "") if path is None else path
        if not named:
            raise ConfigurationError(f"metrics reporter 'jsonl' needs a file: set {PATH_VARIABLE} to its path")
        self._path = Path(named)
        self._clock = clock or SystemClock()
        self._file: IO[str] | None = None

    @override
    def open(self, job_name: str) -> None:
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"metrics reporter 'jsonl' cannot write {self._path}: {error.strerror or error}"
            ) from error

    def report(self, metrics: JobMetrics) -> None:
        """Append a line."""
        if self._file is None:
            raise RuntimeError("report() before open()")
        # Not asdict(): it copies every value deeply, and fails on a read-only mapping.
        line = {
            "time_ms": self._clock.now_ms(),
            "job_name": metrics.job_name,
            "status": metrics.status,
            "elapsed_s": metrics.elapsed_s,
            "records_in": metrics.records_in,
            "records_out": metrics.records_out,
            "restarts": metrics.restarts,
            "latency_ms": metrics.latency_ms,
            "checkpoints": metrics.checkpoints,
            "workers": list(metrics.workers),
            "subtasks": list(metrics.subtasks),
        }
        # One write per line, so that a concurrent reader never sees part of a line.
        self._file.write(json.dumps(_plain(line), allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()

    @override
    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return value
