"""Diagnosis of jobs from given figures; jobs that run are in tests/plugins/web."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import JobMetrics, SplitTime, SplitTimes, SubtaskMetrics
from sluiceway.monitoring.diagnosis import Finding, diagnose, why_late, why_slow
from sluiceway.monitoring.infos import (
    CheckpointInfo,
    EdgeInfo,
    ExecutionInfo,
    JobDescription,
    StepInfo,
    SubtaskInfo,
    VertexInfo,
)
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway.monitoring.split_diagnosis import source_splits

NOW = 1_000_000_000


def vertex(number: int, name: str, kind: str = "map", parallelism: int = 1) -> VertexInfo:
    return VertexInfo(number, name, name, parallelism, 128, [StepInfo(name, name, kind, False)])


def rates(
    number: int,
    subtask: int = 0,
    *,
    busy: float = 0.0,
    blocked: float = 0.0,
    idle: float = 0.0,
    in_per_s: float = 100.0,
    worker: str = "worker-1",
    **rest: Any,
) -> SubtaskRates:
    name = "abcdef"[number]
    metrics = SubtaskMetrics(
        name, subtask, "running", records_in=100, vertex_id=number, worker=worker, at_ms=NOW, **rest
    )
    return SubtaskRates(metrics, in_per_s, 0.0, 0.0, 0.0, busy, blocked, idle)


CHAIN = JobDescription(
    vertices=[vertex(0, "a", "source"), vertex(1, "b"), vertex(2, "c", "sink")],
    edges=[EdgeInfo(0, 1, "hash", "hash", 0, False), EdgeInfo(1, 2, "rebalance", "rebalance", 0, False)],
    checkpoint_interval_ms=1000,
)


def of(found: Sequence[SubtaskRates], status: str = "running") -> JobMetrics:
    return JobMetrics("job", status, 10.0, 1, 1, tuple(r.metrics for r in found))


def slow(*found: SubtaskRates, checkpoints: Sequence[CheckpointInfo] = (), job: JobDescription = CHAIN) -> Finding:
    return why_slow(job, of(found), found, checkpoints).findings[0]


def late(*found: SubtaskRates, job: JobDescription = CHAIN) -> Finding:
    return why_late(job, of(found), found, NOW).findings[0]


def test_the_first_busy_task_against_the_stream_is_the_cause() -> None:
    finding = slow(rates(0, blocked=0.9, busy=0.1), rates(1, busy=0.97, idle=0.03), rates(2, busy=0.1, idle=0.9))
    assert (finding.kind, finding.vertex, finding.text) == ("busy-task", 1, "Slow because 'b' is 97% busy.")
    finding = slow(rates(0, blocked=0.9), rates(1, blocked=0.8, busy=0.2), rates(2, busy=0.99))
    assert (finding.kind, finding.vertex) == ("busy-task", 2)


def test_a_source_can_be_the_limit() -> None:
    finding = slow(rates(0, busy=0.95), rates(1, busy=0.2, idle=0.8), rates(2, idle=1.0))
    assert (finding.kind, finding.text) == ("busy-source", "Limited by the source 'a', which is 95% busy.")


def test_skewed_keys() -> None:
    found = [rates(1, i, busy=0.1, idle=0.9, in_per_s=10) for i in range(3)]
    finding = slow(rates(0, blocked=0.8), rates(1, 3, busy=0.98, in_per_s=270), *found, rates(2, idle=1.0))
    assert (finding.kind, finding.vertex, finding.subtask) == ("skew", 1, 3)
    assert finding.text == (
        "Slow because subtask 4 of 'b' is 98% busy, with 90% of its records; the median of its 4 subtasks is 10%: "
        "the keys are skewed."
    )


def test_a_process_whose_tasks_wait_for_each_other() -> None:
    finding = slow(
        rates(0, blocked=0.6, busy=0.1), rates(1, busy=0.5, idle=0.0), rates(2, busy=0.4, idle=0.1), job=CHAIN
    )
    assert (finding.kind, finding.worker) == ("full-process", "worker-1")
    assert "'b' 50%, 'c' 40%, 'a' 10%" in finding.text


def test_waiting_alone_is_no_full_process() -> None:
    """Between steps of another task, a task with little work waits for most of its time."""
    finding = slow(
        rates(0, blocked=0.9),
        rates(1, busy=0.99),
        rates(2, busy=0.01),  # waits 99 % of its time
    )
    assert (finding.kind, finding.vertex) == ("busy-task", 1)


def test_a_task_that_waits_for_the_one_that_holds_the_thread_is_not_the_cause() -> None:
    """As where the consumers of a slow task are in its process, and have no turn to empty their input."""
    told = (
        rates(0, blocked=0.8, busy=0.02),
        rates(1, blocked=0.28, busy=0.7),
        rates(2, busy=0.06),  # waits 94 % of its time
    )
    finding = slow(*told)
    assert (finding.kind, finding.vertex, finding.text) == ("busy-task", 1, "Slow because 'b' is 70% busy.")
    shared = slow(told[0], rates(1, blocked=0.28, busy=0.4), rates(2, busy=0.3))
    assert (shared.kind, "'b' 40%, 'c' 30%" in shared.text) == ("full-process", True)
    elsewhere = slow(told[0], rates(1, blocked=0.9, busy=0.1), told[2])
    assert (elsewhere.kind, elsewhere.vertex) == ("full-process", 2)
    assert elsewhere.text == (
        "Slow because 'c' waits for its turn 94% of the time, and no task of worker 'worker-1' is busy: other "
        "processes of the machine use its cores."
    )


def test_a_consumer_that_waits_for_something_outside() -> None:
    finding = slow(rates(0, blocked=0.9, busy=0.1), rates(1, busy=0.1, idle=0.9), rates(2, idle=1.0))
    assert (finding.kind, finding.vertex) == ("slow-consumer", 1)


def test_a_job_that_keeps_up_has_no_cause() -> None:
    quiet = rates(0, idle=0.9, busy=0.1), rates(1, busy=0.3, idle=0.7), rates(2, idle=0.99)
    assert slow(*quiet).severity == "ok"
    assert diagnose(CHAIN, of(quiet), quiet).healthy
    assert slow(rates(0, busy=0.6, idle=0.4), rates(1, busy=0.5, idle=0.5), rates(2, idle=1.0)).severity == "ok"


def checkpoint(
    number: int, status: str, duration_ms: int | None, acknowledged_ms: int | None = None, **phases: int
) -> CheckpointInfo:
    usual = {"start_delay_ms": 0, "alignment_ms": 0, "flush_ms": 0, "sync_ms": 0, "async_ms": 0, "size": 10}
    part = SubtaskInfo(task="b", subtask=2, vertex_id=1, **(usual | phases))
    return CheckpointInfo(
        number, status, NOW - 5_000, duration_ms, 10, "disk full", "", [part], acknowledged_ms=acknowledged_ms
    )


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ({"async_ms": 800, "size": 3_000_000}, "writing the state takes 0.8 s in subtask 3 of 'b'"),
        (
            {"async_ms": 800},
            "the checkpoint storage is slow. Writing the state, 10 bytes, takes 0.8 s in subtask 3 of 'b'",
        ),
        ({"start_delay_ms": 820, "sync_ms": 800}, "the copy of the state takes 0.8 s in subtask 3 of 'b'"),
        ({"start_delay_ms": 820, "flush_ms": 800}, "flushing takes 0.8 s in subtask 3 of 'b'"),
        ({"start_delay_ms": 820, "alignment_ms": 800}, "alignment takes 0.8 s in subtask 3 of 'b'"),
        ({"start_delay_ms": 800}, "their barriers wait 0.8 s behind records in front of 'b'"),
    ],
)
def test_slow_checkpoints_have_a_phase(phase: dict[str, int], text: str) -> None:
    quiet = rates(0, idle=1.0), rates(1, idle=1.0), rates(2, idle=1.0)
    finding = slow(*quiet, checkpoints=[checkpoint(1, "completed", 900, **phase)])
    assert (finding.kind, text in finding.text) == ("slow-checkpoint", True)
    assert slow(*quiet, checkpoints=[checkpoint(1, "completed", 100, **phase)]).severity == "ok"


def test_a_checkpoint_that_does_not_end() -> None:
    finding = slow(rates(0, idle=1.0), checkpoints=[checkpoint(7, "pending", None)])
    assert finding.text == (
        "Checkpoint 7 has been under way for 5 s, and one is due every 1 s: 1 of 1 subtasks have acknowledged it."
    )
    running = [ExecutionInfo(1, n, 0, "running", {"created": 1}) for n in (0, 2)]
    waits = JobDescription(CHAIN.vertices, CHAIN.edges, running, checkpoint_interval_ms=1000)
    finding = slow(rates(0, idle=1.0), checkpoints=[checkpoint(7, "pending", None)], job=waits)
    assert finding.text.endswith("1 of 2 subtasks have acknowledged it, and subtask 1 of 'b' has not.")
    assert (finding.vertex, finding.subtask) == (1, 0)
    storing = checkpoint(7, "pending", None, acknowledged_ms=1_000)
    assert slow(rates(0, idle=1.0), checkpoints=[storing]).text.endswith(
        "the checkpoint storage is slow. All subtasks have acknowledged the checkpoint, and its metadata has been "
        "written for 4 s."
    )


def test_the_last_checkpoint_says_why_the_next_one_takes_its_time() -> None:
    quiet, pending = (rates(0, idle=1.0),), checkpoint(8, "pending", None)
    for took_ms, text in ((4_000, "Checkpoints take 4 s"), (900, "Checkpoint 8 has been under way for 5 s")):
        done = checkpoint(7, "completed", took_ms, async_ms=800)
        assert slow(*quiet, checkpoints=[done, pending]).text.startswith(text)


def test_a_checkpoint_that_waits_for_its_metadata() -> None:
    done = checkpoint(7, "completed", 6_000, 1_600, async_ms=1_500)
    assert slow(rates(0, idle=1.0), checkpoints=[done]).text == (
        "Checkpoints take 6 s, and one is due every 1 s: the checkpoint storage is slow. Writing the metadata "
        "takes 4.4 s, after all subtasks have acknowledged the checkpoint."
    )


def test_a_failed_checkpoint_is_told_until_one_completes() -> None:
    quiet = (rates(0, idle=1.0),)
    failed, done = checkpoint(1, "failed", 10), checkpoint(2, "completed", 10)
    assert slow(*quiet, checkpoints=[failed]).text == "Checkpoint 1 has failed: disk full"
    assert slow(*quiet, checkpoints=[failed, done]).severity == "ok"


def test_a_job_that_does_not_run_is_not_slow() -> None:
    assert why_slow(CHAIN, of([], "finished"), []).summary == "The job is finished."
    assert why_slow(CHAIN, of([]), []).summary == "The job has reported no figures yet."
    job = JobDescription(CHAIN.vertices, CHAIN.edges, [ExecutionInfo(1, 0, 0, "deploying", {"created": 1})])
    assert why_slow(job, of([rates(0)]), []).summary == "1 of 1 subtasks are not running: 'b' is deploying."


# ---- event time -------------------------------------------------------------------------------------------------


def test_no_event_time() -> None:
    assert late(rates(0), rates(1)).kind == "no-watermarks"


def test_a_subtask_that_is_behind_the_others() -> None:
    finding = late(
        rates(0, 0, output_watermark=NOW - 1_000),
        rates(0, 1, output_watermark=NOW - 500_000, idle=0.99, in_per_s=0.0),
        rates(0, 2, output_watermark=NOW - 2_000),
    )
    assert (finding.kind, finding.vertex, finding.subtask) == ("held-back", 0, 1)
    assert finding.text == (
        "Event time is held back by subtask 2 of 'a', which is idle: its watermark is 8.3 min behind that of the "
        "other subtasks."
    )


def test_a_subtask_without_a_watermark() -> None:
    finding = late(rates(0, 0, output_watermark=NOW), rates(0, 1))
    assert (finding.kind, finding.subtask, "with_idleness" in finding.text) == ("no-watermark", 1, True)


def test_records_under_way() -> None:
    finding = late(rates(0, output_watermark=NOW), rates(1, watermark=NOW - 60_000), rates(2))
    assert (finding.kind, finding.vertex) == ("delayed", 1)


def test_a_backlog_and_old_records() -> None:
    behind = late(rates(0, output_watermark=NOW - 3_600_000, user={"pendingRecords": 5_000}))
    assert (
        behind.text
        == "Event time is 60 min behind the clock because the sources have 5,000 records still to read."
    )
    old = late(rates(0, output_watermark=NOW - 3_600_000))
    assert (old.kind, old.severity) == ("old-records", "notice")


def test_a_source_that_is_blocked_is_late_because_the_job_is_slow() -> None:
    told = rates(0, blocked=0.9, busy=0.1, output_watermark=NOW - 60_000), rates(1, busy=0.97, idle=0.03), rates(2)
    finding = late(*told)
    assert (finding.kind, finding.vertex) == ("back-pressured", 0)
    assert finding.text == (
        "Event time is 60 s behind the clock because the source 'a' is blocked 90% of the time. See why-slow."
    )
    assert [each.kind for each in diagnose(CHAIN, of(told), told).findings] == ["busy-task"]


def test_event_time_that_is_well() -> None:
    assert late(rates(0, output_watermark=NOW - 2_000)).text == "Event time is 2 s behind the clock."
    assert late(rates(0, output_watermark=MAX_WATERMARK)).kind == "ended"


def test_what_is_late_goes_first_where_nothing_is_slow() -> None:
    found = (
        rates(0, 0, output_watermark=NOW, idle=1.0),
        rates(0, 1, output_watermark=NOW - 500_000, idle=1.0),
        rates(0, 2, output_watermark=NOW, idle=1.0),
    )
    every = diagnose(CHAIN, of(found), found)
    assert (every.findings[0].kind, every.healthy) == ("held-back", False)


def splits(*told: tuple[str, int | None, bool, float], number: int | None = None) -> SplitTimes:
    shown = tuple(SplitTime(*one) for one in told)
    marks = sorted(s.watermark for s in shown if s.watermark is not None and not s.idle)
    return SplitTimes(
        splits=number or len(shown),
        idle=sum(s.idle for s in shown),
        without_watermark=sum(s.watermark is None and not s.idle for s in shown),
        median=marks[len(marks) // 2] if marks else None,
        highest=marks[-1] if marks else None,
        last_record_s=min(s.silent_s for s in shown),
        shown=shown,
    )


def test_the_split_that_holds_back_event_time_is_named() -> None:
    others = [(f"p-{n}", NOW, False, 0.1) for n in range(3)]
    behind = splits(("p-7", NOW - 60_000, False, 0.1), *others)
    finding = late(rates(0, output_watermark=NOW - 60_000, splits=behind), rates(1))
    assert (finding.kind, finding.vertex, finding.subtask, finding.split) == ("held-back", 0, 0, "p-7")
    assert finding.text == (
        "Event time is held back by split 'p-7' of 'a' (subtask 1): its watermark is 60 s behind that of the "
        "other splits."
    )
    silent = splits(("p-7", NOW - 60_000, False, 59.0), *others)
    assert "no record for 59 s" in late(rates(0, output_watermark=NOW - 60_000, splits=silent)).text
    near = splits(("p-7", NOW - 2_000, False, 0.1), *others)
    assert late(rates(0, output_watermark=NOW - 2_000, splits=near)).kind == "ok"


def test_the_slowest_split_may_be_in_another_subtask() -> None:
    fast = splits(("p-1", NOW, False, 0.1), ("p-2", NOW, False, 0.1))
    slow_one = splits(("p-3", NOW - 60_000, False, 0.1))
    finding = late(
        rates(0, 0, output_watermark=NOW, splits=fast), rates(0, 1, output_watermark=NOW - 60_000, splits=slow_one)
    )
    assert (finding.kind, finding.subtask, finding.split) == ("held-back", 1, "p-3")


def test_a_split_without_a_record_holds_back_event_time() -> None:
    quiet = splits(("p-7", None, False, 30.0), ("p-1", NOW, False, 0.1))
    finding = late(rates(0, splits=quiet), rates(1))
    assert (finding.kind, finding.split) == ("no-watermark", "p-7")
    assert "(with_idleness)" in finding.text
    starting = splits(("p-7", None, False, 0.5), ("p-1", NOW, False, 0.1))
    assert late(rates(0, splits=starting), rates(1)).severity == "ok"


def test_idle_splits_are_told_and_hold_nothing_back() -> None:
    some = splits(("p-1", NOW, False, 0.1), ("p-7", NOW - 3_600_000, True, 3600.0), number=1000)
    found = why_late(CHAIN, of([r := rates(0, output_watermark=NOW, splits=some)]), [r], NOW)
    assert [f.kind for f in found.findings] == ["ok", "idle-splits"]
    assert found.healthy
    assert found.findings[1].text == (
        "1 of 1,000 splits of 'a' is idle and does not hold event time back: 'p-7' has given no record for 60 min."
    )


def test_an_idle_split_is_named_among_many_that_are_active() -> None:
    """Each of two subtasks names its twelve slowest splits, more than are shown of both."""
    told = [
        rates(0, subtask, output_watermark=NOW, splits=splits(*active, (f"q-{subtask}", None, True, 3600.0)))
        for subtask in range(2)
        for active in [[(f"p-{subtask}-{n}", NOW, False, 0.1) for n in range(12)]]
    ]
    found = why_late(CHAIN, of(told), told, NOW)
    assert [f.kind for f in found.findings] == ["ok", "idle-splits"]
    shown = source_splits(told)
    assert shown is not None
    assert [s.split for s in shown.shown if s.idle] == ["q-0", "q-1"]
    assert len(shown.shown) == 20


def test_an_idle_source_is_named_where_records_would_be_blamed() -> None:
    every = splits(("p-1", NOW - 60_000, True, 60.0), ("p-7", None, True, 3600.0))
    finding = late(rates(0, output_watermark=NOW - 60_000, splits=every))
    assert (finding.kind, finding.severity) == ("idle-source", "notice")
    assert finding.text == (
        "Event time does not advance. All 2 splits of 'a' are idle: the last record arrived 60 s ago, and the "
        "longest silent one is 'p-7'."
    )


def test_a_blocked_subtask_is_late_because_the_job_is_slow() -> None:
    told = [
        rates(0, 0, blocked=0.1, busy=0.1, idle=0.8, output_watermark=NOW - 1_000),
        rates(0, 1, blocked=0.9, busy=0.1, output_watermark=NOW - 31_000),
        rates(1, busy=0.97, idle=0.03, output_watermark=NOW - 31_000, worker="worker-2"),
        rates(2, idle=1.0, worker="worker-2"),
    ]
    found = late(*told)
    assert (found.kind, found.severity, found.subtask) == ("back-pressured", "cause", 1)
    assert "whose output is blocked 90% of the time" in found.text
    assert "See why-slow" in found.text
    kinds = [each.kind for each in diagnose(CHAIN, of(told), told).findings]
    assert kinds == ["busy-task"], "one cause is told once"
    unblocked = [rates(0, 1, idle=1.0, in_per_s=0.0, output_watermark=NOW - 31_000), told[0], *told[2:]]
    assert late(*unblocked).kind == "held-back"


def test_sources_that_give_no_records_are_late_for_that_reason() -> None:
    mark = NOW - 60_000
    silent = rates(0, output_watermark=mark, splits=splits(("p-0", mark, False, 58.0)), idle=1.0, in_per_s=0.0)
    found = late(silent, rates(1, watermark=mark, idle=1.0))
    assert (found.kind, found.severity) == ("silent-sources", "notice")
    assert found.text == ("Event time is 60 s behind the clock because the sources have given no record for 58 s.")
    old = rates(0, output_watermark=mark, splits=splits(("p-0", mark, False, 0.5)))
    assert late(old, rates(1, watermark=mark)).kind == "old-records"
