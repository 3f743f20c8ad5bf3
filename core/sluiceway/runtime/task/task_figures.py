"""Figures of a task at a moment, as they are sent to the job master."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from sluiceway.graph import ExecutionState
from sluiceway.metrics import SubtaskMetrics
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.runtime.task.task import Task

__all__ = ["figures_of", "plain_figures", "plain_subtask"]


def figures_of(task: Task, worker: str = "", state: ExecutionState = ExecutionState.CREATED) -> TaskFigures:
    """Return the current figures of a task on a worker. From any thread.

    Args:
        task: the task.
        worker: name of the worker; empty in one process.
        state: its state, where the job master's is known; :class:`JobFigures` sets it otherwise.
    """
    latency = {
        name: {"p50": h.quantile(0.5) * 1000, "p99": h.quantile(0.99) * 1000}
        for name, h in task.latencies().items()
        if h.count
    }
    return TaskFigures(
        attempt_id=task.deployment.attempt_id,
        metrics=task.metrics(state, worker),
        is_source=isinstance(task.input, SourceInput),
        records_to_sinks=task.records_to_sinks(),
        latency_ms=latency,
    )


def plain_figures(figures: TaskFigures) -> TaskFigures:
    """Return figures whose values are plain numbers, to be sent: functions may have registered any values."""
    return msgspec.structs.replace(figures, metrics=plain_subtask(figures.metrics))


def plain_subtask(metrics: SubtaskMetrics) -> SubtaskMetrics:
    """Return the metrics of a subtask with plain numbers; what is none is left out."""
    # A copy of so many fields costs as much as half of the figures, and most tasks have nothing to convert.
    marks = metrics.watermark, metrics.output_watermark, metrics.watermark_lag_ms
    if not (metrics.user or metrics.operators) and all(mark is None or type(mark) is int for mark in marks):
        return metrics
    return replace(
        metrics,
        user=_numbers(metrics.user),
        operators={name: _numbers(own) for name, own in metrics.operators.items()},
        watermark=_whole(metrics.watermark),
        output_watermark=_whole(metrics.output_watermark),
        watermark_lag_ms=_whole(metrics.watermark_lag_ms),
    )


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in figures.items():
        if type(value) is float or (type(value) is int and abs(value) < 1 << 63):
            numbers[str(name)] = value
        else:
            with suppress(Exception):  # other values are left out
                numbers[str(name)] = float(value)
    return numbers


def _whole(mark: Any) -> int | None:
    return None if mark is None else int(mark)
