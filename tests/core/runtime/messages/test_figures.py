"""Figures on their way from a worker to the job manager and to clients."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.runtime.messages.clients import Status
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.messages.protocol import decode, encode
from sluiceway.runtime.messages.workers import ReportMetrics
from sluiceway.runtime.task.task_figures import plain_figures


def sent(metrics: SubtaskMetrics) -> SubtaskMetrics:
    figures = plain_figures(TaskFigures("a", metrics, True, 3, {"sink": {"p50": 1.5}}))
    message = decode(encode(ReportMetrics("job", 1, [figures])))
    assert isinstance(message, ReportMetrics)
    (got,) = message.figures
    assert (got.attempt_id, got.is_source, got.records_to_sinks) == ("a", True, 3)
    return got.metrics


def test_figures_come_as_they_were_and_whole_numbers_stay_whole() -> None:
    metrics = SubtaskMetrics(
        "map", 1, "running", 7, 8, 0.5, watermark=-5, user={"seen": 3, "rate": 2.5}, operators={"m": {"seen": 3}}
    )
    got = sent(metrics)
    assert got == metrics
    assert repr(got.user) == "{'seen': 3, 'rate': 2.5}"


def test_what_a_function_has_put_into_its_metrics_does_no_harm() -> None:
    odd: dict[str, Any] = {
        "numpy": np.int64(4),
        "decimal": Decimal("0.5"),
        "huge": 1 << 70,
        "text": "many",
        "object": object(),
        "flag": True,
    }
    watermark: Any = np.int64(9)
    got = sent(SubtaskMetrics("map", 1, "running", watermark=watermark, user=odd, operators={"m": odd}))
    assert got.user == {"numpy": 4.0, "decimal": 0.5, "huge": float(1 << 70), "flag": 1.0}
    assert got.operators == {"m": got.user}
    assert got.watermark == 9


def test_the_metrics_of_jobs_come_to_clients() -> None:
    metrics = JobMetrics("job", "running", 1.5, 3, 4, (SubtaskMetrics("map", 0, "running"),), {"s": {"p99": 2.0}})
    status = Status(1, 2, 3, 4, 5, 6, 7, "shm", [], [], figures={"job-1": metrics})
    got = decode(encode(status))
    assert isinstance(got, Status)
    assert got.figures == {"job-1": metrics}
