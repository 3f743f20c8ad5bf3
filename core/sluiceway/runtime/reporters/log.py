"""Metrics reporter that writes log lines."""

from __future__ import annotations

import logging
from typing import Final

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway.util.overriding import override

__all__ = ["LogReporter"]

_LOGGER: Final = logging.getLogger("sluiceway.metrics")


class LogReporter(MetricsReporter):
    """Metrics reporter that logs one line per job and one per subtask.

    The lines have level INFO and go to the logger ``sluiceway.metrics``.
    """

    @override
    def report(self, metrics: JobMetrics) -> None:
        if not _LOGGER.isEnabledFor(logging.INFO):
            return
        _LOGGER.info(
            "%s: %s, %.1f s, %d record%s in, %d out",
            metrics.job_name,
            metrics.status,
            metrics.elapsed_s,
            metrics.records_in,
            "" if metrics.records_in == 1 else "s",
            metrics.records_out,
        )
        for sink, quantiles in metrics.latency_ms.items():
            told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in quantiles.items())
            _LOGGER.info("%s: latency to %r: %s", metrics.job_name, sink, told)
        for task in metrics.subtasks:
            _LOGGER.info(
                "%s: %s[%d] %s, %d in, %d out, busy %.2f s, back-pressured %.2f s, idle %.2f s, watermark %s%s",
                metrics.job_name,
                task.vertex,
                task.subtask,
                task.state,
                task.records_in,
                task.records_out,
                task.busy_s,
                task.backpressured_s,
                task.idle_s,
                _watermark(task.watermark),
                "".join(f", {name}={value:g}" for name, value in sorted(task.user.items())),
            )


def _watermark(watermark: int | None) -> str:
    if watermark is None:
        return "none"
    return "end" if watermark >= MAX_WATERMARK else str(watermark)
