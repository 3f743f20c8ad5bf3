"""Diagnosis of jobs in micro-batches, whose tasks nobody knows the load of."""

from __future__ import annotations

from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.diagnosis import why_slow
from sluiceway.monitoring.infos import JobDescription, MicroBatchInfo
from sluiceway.monitoring.rates import RateMeter

BATCH = MicroBatchInfo(7, 1000, 8800, 2118, 240.0, 68, 43_816, {"addBatch": 6800, "queryPlanning": 900})


def told(batches: list[MicroBatchInfo], interval_ms: int = 0, doing: str = "") -> tuple[str, bool, str]:
    subtask = SubtaskMetrics("map", 0, "running", records_in=5, records_out=5)
    metrics = JobMetrics("words", "running", 9.0, 5, 5, (subtask,), micro_batches=len(batches), doing=doing)
    description = JobDescription(micro_batches=batches, checkpoint_interval_ms=interval_ms)
    found = why_slow(description, metrics, RateMeter().read("words", metrics))
    return found.findings[0].kind, found.healthy, found.summary


def test_the_last_micro_batch_is_told() -> None:
    kind, healthy, text = told([BATCH])
    assert (kind, healthy) == ("micro-batch", True)
    assert text == "Micro-batch 7 took 8.8 s for 2,118 records. 6.8 s of it was 'addBatch'."


def test_micro_batches_that_take_longer_than_their_interval() -> None:
    kind, healthy, text = told([BATCH], interval_ms=5000)
    assert (kind, healthy) == ("slow-micro-batch", False)
    assert text.startswith("Micro-batches take 8.8 s, and one is due every 5 s: the last one had 2,118 records.")
    assert told([BATCH], interval_ms=9000)[0] == "micro-batch"


def test_a_batch_job_has_no_load() -> None:
    kind, healthy, text = told([], doing="stage 2 of 3")
    assert (kind, healthy) == ("engine", True)
    assert "does not report their load: stage 2 of 3" in text
