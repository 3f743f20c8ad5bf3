"""The checkpoint coordinator, with a job that only notes what it is told."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.elements import CheckpointBarrier
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.runtime.jobmanager.checkpoint_coordinator import (
    CheckpointCoordinator,
    CheckpointPolicy,
    CheckpointRecord,
    CompletedCheckpoint,
    Participants,
    SavepointRequest,
)
from sluiceway.runtime.loop.poller import Poller
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.task.snapshot import TaskSnapshot


class Job:
    """Two tasks, a source and what it feeds."""

    def __init__(self, **policy: Any) -> None:
        self.clock = VirtualClock(1_000)
        self.timers = TaskletLoop(self.clock, Mock(spec=Poller))
        self.running = {"source": (0, 0), "sink": (1, 0)}
        self.finished: tuple[tuple[int, int], ...] = ()
        self.left: dict[tuple[int, int], TaskSnapshot] = {}
        self.all_running = True
        self.triggered: list[int] = []
        self.barriers: list[CheckpointBarrier] = []
        self.answers: list[tuple[str, str | None]] = []
        self.told: list[tuple[str, int]] = []
        self.reminded: list[tuple[list[str], int, bool]] = []
        self.completed_ones: dict[int, CompletedCheckpoint] = {}
        self.discarded: list[int] = []
        self.vain: list[tuple[int, TaskSnapshot]] = []
        self.rests: list[tuple[int, str]] = []
        self.failure: BaseException | None = None
        self.failures: list[int] = []
        self.stored: Callable[[BaseException | None], None] | None = None
        self.stores_at_once = True
        self.enumerator: Callable[[], Any] = list
        self.coordinator = CheckpointCoordinator(
            CheckpointPolicy(**{"interval_ms": 100, **policy}), self.clock, Random(1), self, self._later
        )

    def _later(self, action: Callable[[], None], after_s: float) -> Scheduled:
        return self.timers.at(self.clock.monotonic() + after_s, action)

    def advance(self, ms: int) -> None:
        until = self.clock.monotonic() + ms / 1000
        while (at := self.timers.next_deadline()) is not None and at <= until:
            self.clock.advance(max(0, math.ceil((at - self.clock.monotonic()) * 1000)))
            self.timers.run_ready()
        self.clock.advance(max(0, round((until - self.clock.monotonic()) * 1000)))

    def participants(self) -> Participants | None:
        first = "source" if "source" in self.running else "sink"
        return Participants(dict(self.running), (first,), self.finished) if self.all_running else None

    def empty_final_snapshot(self, where: tuple[int, int]) -> TaskSnapshot | None:
        return self.left.get(where)

    def enumerators(self, checkpoint_id: int) -> dict[str, Any]:
        return {"source": self.enumerator()}

    def trigger(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        assert attempt_id == next(iter(self.running))
        self.triggered.append(barrier.checkpoint_id)
        self.barriers.append(barrier)

    def store(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        self.stored = stored
        if self.stores_at_once:
            stored(None)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        self.discarded.append(checkpoint.checkpoint_id)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        self.vain.append((checkpoint_id, snapshot))

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        self.rests.append((checkpoint_id, savepoint))

    def completed(self, checkpoint: CompletedCheckpoint, record: CheckpointRecord) -> None:
        self.completed_ones[checkpoint.checkpoint_id] = checkpoint
        self.told.append(("completed", checkpoint.checkpoint_id))

    def aborted(self, checkpoint_id: int, cause: BaseException, failures: int) -> None:
        self.told.append(("aborted", checkpoint_id))
        self.failures.append(failures)

    def notify(self, attempt_ids: list[str], checkpoint_id: int, completed: bool) -> None:
        self.reminded.append((attempt_ids, checkpoint_id, completed))

    def fail(self, cause: BaseException) -> None:
        self.failure = cause

    # ---- what tests do --------------------------------------------------------------------------------------

    def started(self) -> Job:
        self.coordinator.start()
        return self

    def acknowledge(self, checkpoint_id: int, *attempts: str, drained: bool = False) -> None:
        for attempt in attempts or tuple(self.running):
            self.coordinator.acknowledge(attempt, checkpoint_id, part(attempt, drained))

    def ask_for_savepoint(self, *, stops: bool = False, suspends: bool = False) -> None:
        def done(location: str, problem: BaseException | None) -> None:
            self.answers.append((location, None if problem is None else str(problem)))

        self.coordinator.savepoint(SavepointRequest("place/", "job", stops, done, suspends))

    def until_triggered(self, checkpoint_id: int) -> None:
        for _ in range(1000):
            if checkpoint_id in self.triggered:
                return
            self.advance(1)
        raise AssertionError(f"checkpoint {checkpoint_id} was not triggered")


def part(attempt: str, drained: bool = False) -> TaskSnapshot:
    return TaskSnapshot((OperatorSnapshot(attempt),), drained=drained)


def test_the_first_comes_after_a_part_of_the_interval_and_then_one_each_interval() -> None:
    job = Job().started()
    assert job.triggered == []
    job.until_triggered(1)
    first = job.clock.now_ms() - 1_000
    assert 0 < first < 100
    job.acknowledge(1)
    job.advance(98)
    assert job.triggered == [1]
    job.advance(2)
    assert job.triggered == [1, 2]


def test_it_is_complete_when_all_have_acknowledged_it_and_was_stored() -> None:
    job = Job().started()
    job.stores_at_once = False
    job.until_triggered(1)
    job.acknowledge(1, "sink")
    assert job.stored is None
    job.acknowledge(1, "source")
    assert job.told == []
    assert job.stored is not None
    job.stored(None)
    assert job.told == [("completed", 1)]
    latest = job.coordinator.latest
    assert latest is not None
    assert [s.uid for s in latest.snapshot.operators] == ["source", "sink"], "in the order of the job"
    assert latest.snapshot.enumerators == {"source": []}
    record = job.coordinator.history[-1]
    assert (record.checkpoint_id, record.status, len(record.tasks)) == (1, "completed", 2)


def test_the_history_tells_of_each_task_and_keeps_no_state() -> None:
    job = Job().started()
    job.until_triggered(1)
    kept = ListSnapshot("numbers", ListMode.SPLIT, "msgspec", 1, "int", 0, 1, (b"123", b"45"))
    taken = TaskSnapshot((OperatorSnapshot("sink", lists=(kept,)),), alignment_ms=3, sync_ms=4, async_ms=5)
    job.coordinator.acknowledge("sink", 1, taken)
    record = job.coordinator.history[-1]
    assert (record.status, list(record.tasks), record.acknowledged_ms) == ("pending", [(1, 0)], None)
    job.advance(20)
    job.stores_at_once = False
    job.acknowledge(1, "source")
    assert (record.status, sorted(record.tasks), record.acknowledged_ms) == ("pending", [(0, 0), (1, 0)], 20)
    job.advance(30)
    assert job.stored is not None
    job.stored(None)
    assert (record.status, record.acknowledged_ms, record.duration_ms) == ("completed", 20, 50)
    told = record.tasks[1, 0]
    assert (told.operators, told.size, record.size) == ((), 5, 5)
    assert (told.alignment_ms, told.sync_ms, told.async_ms) == (3, 4, 5)


def test_one_that_cannot_be_stored_has_failed() -> None:
    job = Job(tolerated_failures=1).started()
    job.stores_at_once = False
    job.until_triggered(1)
    job.acknowledge(1)
    assert job.stored is not None
    job.stored(OSError("disk full"))
    assert job.told == [("aborted", 1)]
    assert job.coordinator.latest is None
    assert job.coordinator.history[-1].reason == "disk full"
    assert job.failure is None


def test_only_so_many_are_kept() -> None:
    job = Job(retained=2).started()
    for id_ in (1, 2, 3, 4):
        job.until_triggered(id_)
        job.acknowledge(id_)
    assert job.discarded == [1, 2]


def test_while_one_is_under_way_there_is_no_other() -> None:
    job = Job().started()
    job.until_triggered(1)
    job.advance(250)
    assert job.triggered == [1]
    job.acknowledge(1)
    assert job.triggered == [1, 2], "the one that was due meanwhile"


def test_several_may_be_under_way_and_a_newer_one_ends_the_older_ones() -> None:
    job = Job(max_concurrent=2).started()
    job.until_triggered(2)
    job.advance(100)
    assert job.triggered == [1, 2]
    job.acknowledge(1, "source")
    job.acknowledge(2)
    assert job.told == [("aborted", 1), ("completed", 2)]
    assert [id_ for id_, _ in job.vain] == [1]
    job.acknowledge(1, "sink")
    assert [id_ for id_, _ in job.vain] == [1, 1], "too late"
    assert job.coordinator.late == 1
    assert job.failure is None


def test_between_two_there_is_the_pause() -> None:
    job = Job(min_pause_ms=70).started()
    job.until_triggered(1)
    job.advance(80)
    job.acknowledge(1)
    job.advance(69)
    assert job.triggered == [1]
    job.advance(1)
    assert job.triggered == [1, 2]


def test_one_that_takes_too_long_is_given_up() -> None:
    job = Job(timeout_ms=50, tolerated_failures=1).started()
    job.until_triggered(1)
    job.acknowledge(1, "source")
    job.advance(50)
    assert job.told == [("aborted", 1)]
    assert job.coordinator.history[0].reason == "after 0.05 s 1 of 2 subtasks had not acknowledged it"
    job.acknowledge(1, "sink")
    assert job.coordinator.latest is None


def test_one_that_is_declined_is_given_up_and_too_many_fail_the_job() -> None:
    job = Job(tolerated_failures=1).started()
    job.until_triggered(1)
    job.coordinator.decline("sink", 1, ValueError("no way"))
    assert job.told == [("aborted", 1)]
    assert job.failure is None
    job.until_triggered(2)
    job.coordinator.decline("sink", 2, ValueError("no way"))
    assert job.failures == [1, 2]
    assert str(job.failure) == (
        "checkpoint 2 has failed: no way. That makes 2 in a row, and checkpoint-tolerated-failures is 1"
    )


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_failure_whose_text_cannot_be_shown_is_reported_with_its_class_and_notes() -> None:
    job = Job(tolerated_failures=0).started()
    job.until_triggered(1)
    cause = MuteError()
    cause.add_note("in step 'sink'")
    job.coordinator.decline("sink", 1, cause)
    says = "MuteError (its text cannot be shown: its __str__ raised RuntimeError)"
    assert job.coordinator.history[-1].reason == says
    assert str(job.failure).startswith(f"checkpoint 1 has failed: {says}. That makes 1 in a row")
    assert job.failure is not None
    assert job.failure.__notes__ == ["in step 'sink'"]


def test_a_complete_one_ends_the_row_of_failures() -> None:
    job = Job(tolerated_failures=1).started()
    for id_ in (1, 2, 3, 4):
        job.until_triggered(id_)
        if id_ % 2:
            job.coordinator.decline("sink", id_, ValueError("no way"))
        else:
            job.acknowledge(id_)
    assert job.failure is None


def test_a_task_that_fails_ends_what_is_pending_and_that_is_no_failure_of_the_checkpoint() -> None:
    job = Job().started()
    job.until_triggered(1)
    job.coordinator.task_ended("sink", failed=True)
    assert job.told == [("aborted", 1)]
    assert (job.failures, job.failure) == ([0], None)
    job.until_triggered(2)
    job.acknowledge(2, "source")
    job.coordinator.task_ended("source", failed=False)
    job.acknowledge(2, "sink")
    assert job.told[-1] == ("completed", 2), "its part is in the checkpoint"


def test_one_that_all_have_acknowledged_is_completed_though_a_task_fails_meanwhile() -> None:
    job = Job().started()
    job.stores_at_once = False
    job.until_triggered(1)
    job.acknowledge(1)
    job.coordinator.task_ended("sink", failed=True)
    assert job.told == []
    assert job.stored is not None
    job.stored(None)
    assert job.told == [("completed", 1)]


@pytest.mark.parametrize("problem", [None, OSError("disk full")])
def test_one_that_is_not_stored_before_tasks_begin_anew_is_undone_when_it_can_be(problem: OSError | None) -> None:
    job = Job().started()
    job.stores_at_once = False
    job.until_triggered(1)
    job.acknowledge(1)
    job.coordinator.restarting()
    assert job.told == [("aborted", 1)]
    assert (job.vain, job.discarded) == ([], []), "its files may just be written"
    assert job.failure is None, "the checkpoint has not failed"
    assert job.stored is not None
    job.stored(problem)
    assert job.coordinator.latest is None
    assert (len(job.vain), job.discarded) == ((0, [1]) if problem is None else (2, []))


def test_nothing_is_triggered_until_all_tasks_run() -> None:
    job = Job().started()
    job.all_running = False
    job.advance(500)
    assert job.triggered == []
    job.all_running = True
    job.coordinator.maybe_trigger()
    assert job.triggered == [1]


def test_an_enumerator_that_cannot_say_where_it_is_fails_the_checkpoint() -> None:
    job = Job(tolerated_failures=0).started()

    def broken() -> Any:
        raise ValueError("lost")

    job.enumerator = broken
    job.advance(200)
    assert job.triggered == []
    assert "lost" in str(job.failure)


def test_when_all_have_come_to_their_end_there_is_one_at_once() -> None:
    job = Job(interval_ms=3_600_000, min_pause_ms=1000).started()
    job.coordinator.drained("source")
    assert job.triggered == []
    job.coordinator.drained("sink")
    assert job.triggered == [1]
    job.acknowledge(1, drained=True)
    assert job.told == [("completed", 1)]
    job.coordinator.maybe_trigger()
    assert job.triggered == [1], "they are about to finish"


def test_who_has_finished_takes_part_with_its_last_state() -> None:
    job = Job().started()
    job.coordinator.drained("source")
    job.until_triggered(1)
    job.acknowledge(1, "source", drained=True)
    job.acknowledge(1, "sink")
    job.advance(200)
    assert job.triggered == [1], "the source is about to finish"
    del job.running["source"]
    job.finished = ((0, 0),)
    job.coordinator.task_ended("source", failed=False)
    assert job.triggered == [1, 2]
    job.acknowledge(2, "sink")
    checkpoint = job.completed_ones[2]
    assert checkpoint.tasks[0, 0] == part("source", drained=True)
    assert [s.uid for s in checkpoint.snapshot.operators] == ["source", "sink"]


def test_the_last_state_of_who_has_finished_is_that_of_the_checkpoint_before_not_of_one_deleted_since() -> None:
    job = Job(max_concurrent=2).started()
    job.until_triggered(1)
    job.acknowledge(1, "source", drained=True)
    job.acknowledge(1, "sink")
    del job.running["source"]
    job.finished = ((0, 0),)
    job.coordinator.task_ended("source", failed=False)
    job.until_triggered(3)
    job.acknowledge(2)
    assert job.discarded == [1], "while the third is pending"
    # As a store does, with the files of the first.
    copied = job.completed_ones[2].tasks[0, 0] = part("copied", drained=True)
    job.acknowledge(3)
    assert job.completed_ones[3].tasks[0, 0] == copied


def test_a_last_one_that_fails_is_tried_again_after_a_while() -> None:
    job = Job(interval_ms=3_600_000, tolerated_failures=5).started()
    job.coordinator.drained("source")
    job.coordinator.drained("sink")
    job.coordinator.decline("sink", 1, ValueError("no way"))
    assert job.triggered == [1]
    job.advance(1000)
    assert job.triggered == [1, 2]


def test_an_acknowledgement_that_comes_twice_takes_nothing_away_from_its_checkpoint() -> None:
    job = Job().started()
    job.until_triggered(1)
    job.acknowledge(1, "source", "source")
    job.acknowledge(1, "sink")
    assert job.told == [("completed", 1)]
    job.acknowledge(1, "source", "sink")
    assert (job.vain, job.discarded, job.coordinator.late) == ([], [], 3)
    job.until_triggered(2)
    job.coordinator.decline("sink", 2, OSError("full"))
    job.acknowledge(2, "source", "source")
    assert [id_ for id_, _ in job.vain] == [2], "for the first time, but too late"


def test_who_waits_for_the_last_one_is_told_again_until_it_has_ended() -> None:
    job = Job(interval_ms=60_000).started()
    job.coordinator.drained("source")
    job.coordinator.drained("sink")
    job.acknowledge(1, drained=True)
    assert (job.told, job.reminded) == ([("completed", 1)], [])
    job.coordinator.task_ended("sink", failed=False)
    job.advance(5_000)
    assert job.reminded == [(["source"], 1, True)]
    job.acknowledge(2, "source")  # of one that it did its part of before
    job.coordinator.task_ended("source", failed=False)
    job.advance(60_000)
    assert len(job.reminded) == 1


def test_who_stands_still_for_a_savepoint_is_told_again_what_has_become_of_it() -> None:
    job = Job().started()
    job.ask_for_savepoint(stops=True)
    job.coordinator.decline("sink", 1, OSError("full"))
    job.advance(5_000)
    assert job.reminded == [(["sink", "source"], 1, False)]
    job.acknowledge(job.triggered[-1])  # both have gone on
    job.advance(5_000)
    assert len(job.reminded) == 1
    savepoint = Job().started()
    savepoint.ask_for_savepoint(stops=True)
    savepoint.acknowledge(1)
    savepoint.advance(600_000)
    assert savepoint.reminded == [(["sink", "source"], 1, True)] * 20, "but not for ever"


def test_with_a_checkpoint_that_suspends_all_tasks_end_and_the_job_goes_on_from_it() -> None:
    job = Job().started()
    job.ask_for_savepoint(suspends=True)
    assert (job.barriers[0].stops, job.barriers[0].savepoint) == (True, "")
    job.acknowledge(1)
    assert job.told == [("completed", 1)]
    assert job.answers == [("", None)]
    latest = job.coordinator.latest
    assert latest is not None
    assert latest.checkpoint_id == 1
    job.advance(5_000)
    assert job.triggered == [1], "none begins while they end"
    assert job.reminded == [(["sink", "source"], 1, True)]
    job.coordinator.resized()
    del job.running["source"]
    job.finished = ((0, 0),)
    job.coordinator.start()
    job.until_triggered(2)
    job.acknowledge(2)
    assert list(job.completed_ones[2].tasks) == [(1, 0)], "the source that was suspended was another one"


def test_who_was_to_be_suspended_and_goes_on_is_told_so_again() -> None:
    job = Job().started()
    job.ask_for_savepoint(suspends=True)
    job.coordinator.decline("sink", 1, OSError("full"))
    assert job.answers == [("", "full")]
    job.advance(5_000)
    assert job.reminded == [(["sink", "source"], 1, False)]
    assert job.failure is None


def test_after_its_end_there_is_none() -> None:
    job = Job().started()
    job.until_triggered(1)
    job.coordinator.stop()
    assert job.told == [("aborted", 1)]
    job.advance(1000)
    assert job.triggered == [1]
    assert job.failure is None


class Asked:
    """Answers to requests for checkpoints."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.answers: list[tuple[int, str | None]] = []

    def ask(self) -> None:
        def done(checkpoint_id: int, problem: BaseException | None) -> None:
            self.answers.append((checkpoint_id, None if problem is None else str(problem)))

        self.job.coordinator.checkpoint(done)


def test_a_checkpoint_on_demand_does_not_wait_for_the_interval_nor_for_the_pause() -> None:
    job = Job(interval_ms=60_000, min_pause_ms=30_000).started()
    asked = Asked(job)
    asked.ask()
    asked.ask()
    assert job.triggered == [1]
    job.acknowledge(1)
    # The second came after the first had begun, and is answered by one of its own.
    assert asked.answers == [(1, None)]
    assert job.triggered == [1, 2]
    job.acknowledge(2)
    assert asked.answers == [(1, None), (2, None)]
    latest = job.coordinator.latest
    assert latest is not None
    assert latest.checkpoint_id == 2
    job.advance(29_000)
    assert job.triggered == [1, 2]


def test_a_checkpoint_on_demand_begins_when_all_tasks_run() -> None:
    job = Job(interval_ms=60_000, timeout_ms=1000).started()
    job.all_running = False
    asked = Asked(job)
    asked.ask()
    job.advance(500)
    job.all_running = True
    job.coordinator.maybe_trigger()
    assert job.triggered == [1]
    job.advance(700)
    assert asked.answers == [], "it has a timeout of its own"
    job.advance(301)
    assert asked.answers == [(0, "after 1 s 2 of 2 subtasks had not acknowledged it")]
    job = Job(interval_ms=60_000, timeout_ms=1000).started()
    job.all_running = False
    asked = Asked(job)
    asked.ask()
    job.advance(1000)
    assert asked.answers == [(0, "not all tasks were running for 1 s, or others were under way")]
    job.all_running = True
    job.coordinator.maybe_trigger()
    job.acknowledge(1)
    assert len(asked.answers) == 1, "it was answered"


def test_a_checkpoint_on_demand_that_is_overtaken_by_a_newer_one_is_answered_by_it() -> None:
    job = Job(interval_ms=100, max_concurrent=2).started()
    asked = Asked(job)
    asked.ask()
    job.until_triggered(2)
    job.acknowledge(2)
    assert asked.answers == [(2, None)]


@pytest.mark.parametrize("end", ["decline", "task", "stop", "stopped"])
def test_a_checkpoint_on_demand_that_fails_is_answered_with_the_reason(end: str) -> None:
    job = Job(interval_ms=60_000, tolerated_failures=5).started()
    asked = Asked(job)
    if end == "stopped":
        job.coordinator.stop()
    if end == "stop":
        job.all_running = False
    asked.ask()
    if end == "decline":
        job.coordinator.decline("sink", 1, OSError("disk full"))
    elif end == "task":
        job.coordinator.task_ended("sink", failed=True)
    elif end == "stop":
        job.coordinator.stop()
    reason = {"decline": "disk full", "task": "a task has ended before it was complete"}
    assert asked.answers == [(0, reason.get(end, "the job has ended"))]
    job.advance(700_000)
    assert len(asked.answers) == 1


def test_a_savepoint_waits_for_what_is_under_way_and_others_wait_for_it() -> None:
    job = Job(max_concurrent=3).started()
    job.until_triggered(1)
    job.ask_for_savepoint()
    assert job.triggered == [1]
    job.acknowledge(1)
    assert job.triggered == [1, 2]
    where = f"place/savepoint-job-{job.barriers[1].timestamp_ms}-2"
    assert (job.barriers[0].savepoint, job.barriers[1].savepoint) == ("", where)
    job.advance(300)
    assert job.triggered == [1, 2], "a newer barrier would end the older one"
    job.acknowledge(2)
    assert job.answers == [(where, None)]
    assert job.triggered == [1, 2, 3]
    latest = job.coordinator.latest
    assert latest is not None
    assert latest.checkpoint_id == 1, "the job does not go back to a savepoint"
    assert job.discarded == []
    assert [(r.checkpoint_id, r.savepoint) for r in job.coordinator.history][1] == (2, where)


def test_a_savepoint_that_fails_is_no_failure_of_the_job() -> None:
    job = Job(interval_ms=0, tolerated_failures=0).started()
    for end in ("decline", "time", "store", "restart"):
        job.ask_for_savepoint(stops=True)
        checkpoint = job.triggered[-1]
        assert job.barriers[-1].stops
        if end == "decline":
            job.coordinator.decline("sink", checkpoint, OSError("disk full"))
        elif end == "time":
            job.advance(600_000)
        elif end == "restart":
            job.coordinator.task_ended("sink", failed=True)
        else:
            job.stores_at_once = False
            job.acknowledge(checkpoint)
            assert job.stored is not None
            job.stored(OSError("disk full"))
        assert job.told[-1] == ("aborted", checkpoint)
    assert [location for location, _ in job.answers] == [""] * 4
    told = [problem for _, problem in job.answers]
    assert told[0] == told[2] == "disk full"
    assert told[1] == "after 600 s 2 of 2 subtasks had not acknowledged it"
    assert job.failure is None


def test_what_is_left_of_one_that_was_given_up_is_discarded() -> None:
    job = Job(tolerated_failures=9).started()
    job.until_triggered(1)
    job.acknowledge(1, "source")
    job.coordinator.task_ended("sink", failed=True)
    assert job.rests == [(1, "")]
    job.stores_at_once = False
    job.until_triggered(2)
    job.acknowledge(2)
    job.coordinator.restarting()
    assert job.rests == [(1, "")], "its files are in use"
    assert job.stored is not None
    job.stored(OSError("the disk is full"))
    assert job.rests == [(1, ""), (2, "")]
    job.ask_for_savepoint()
    job.coordinator.decline("sink", 3, ValueError())
    (_, location) = job.rests[2]
    assert location.startswith("place/savepoint-job-")


@pytest.mark.parametrize("stops", [False, True])
def test_a_savepoint_that_is_being_stored_when_a_task_fails_is_none(stops: bool) -> None:
    job = Job().started()
    job.stores_at_once = False
    job.ask_for_savepoint(stops=stops)
    job.acknowledge(1)
    assert job.stored is not None
    job.coordinator.task_ended("sink", failed=True)
    assert job.answers == [("", "a task has ended before it was complete")]
    job.stored(None)
    assert (job.told, job.discarded) == ([("aborted", 1)], [1])
    job.until_triggered(2)  # and it goes on


def test_after_a_savepoint_that_the_job_ends_with_there_is_none() -> None:
    job = Job().started()
    job.ask_for_savepoint(stops=True)
    job.ask_for_savepoint()
    job.acknowledge(1)
    assert job.told == [("completed", 1)]
    assert [problem for _, problem in job.answers] == [None, "the job has ended"]
    job.advance(1000)
    job.ask_for_savepoint()
    assert job.triggered == [1]
    assert job.answers[-1] == ("", "the job has ended")


def test_a_savepoint_that_cannot_begin_is_given_up_after_a_while() -> None:
    job = Job(interval_ms=0)
    job.all_running = False
    job.ask_for_savepoint()
    job.started()
    assert job.answers == [], "the job may come to run"
    job.advance(599_999)
    assert job.answers == []
    job.advance(1)
    assert job.answers == [("", "not all tasks were running for 600 s, or others were under way")]
    job.all_running = True
    job.coordinator.maybe_trigger()
    assert job.triggered == []


def test_a_savepoint_knows_of_who_has_finished_without_a_checkpoint_only_if_that_has_left_nothing() -> None:
    job = Job(interval_ms=0).started()
    del job.running["source"]
    job.finished = ((0, 0),)
    job.ask_for_savepoint()
    assert job.answers[0][0] == ""
    assert "its state is in no checkpoint: give the job a checkpoint-interval" in str(job.answers[0][1])
    job.left = {(0, 0): part("left")}
    job.ask_for_savepoint()
    job.acknowledge(1)
    assert job.answers[1][1] is None
    assert job.completed_ones[1].tasks.keys() == {(0, 0), (1, 0)}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_tasks_say_every_checkpoint_ends_and_the_latest_is_the_highest(seed: int) -> None:
    lots = Random(seed)
    job = Job(max_concurrent=lots.randint(1, 3), timeout_ms=150, tolerated_failures=10**9).started()
    for _ in range(400):
        job.advance(lots.randint(1, 30))
        for id_ in lots.sample(job.triggered, min(2, len(job.triggered))):
            attempt = lots.choice(["source", "sink"])
            if lots.random() < 0.8:
                job.acknowledge(id_, attempt)
            elif lots.random() < 0.3:
                job.coordinator.decline(attempt, id_, ValueError())
        if lots.random() < 0.02:
            job.coordinator.task_ended("sink", failed=True)
    job.coordinator.stop()
    over = [id_ for _, id_ in job.told]
    assert sorted(over) == job.triggered, "each ends once"
    complete = [id_ for what, id_ in job.told if what == "completed"]
    assert complete == sorted(complete)
    assert complete
    assert job.discarded == complete[:-1]


def acknowledged(job: Job, checkpoint_id: int) -> weakref.ref[Any]:
    class Watched(TaskSnapshot, weakref=True):
        pass

    state = Watched(())
    job.coordinator.acknowledge("source", checkpoint_id, state)
    return weakref.ref(state)


@pytest.mark.parametrize("how", ["completed", "declined", "its task failed", "savepoint"])
def test_the_timer_of_a_checkpoint_that_is_over_keeps_nothing(how: str) -> None:
    job = Job(interval_ms=0 if how == "savepoint" else 100, tolerated_failures=1000).started()
    states = []
    for checkpoint_id in range(1, 300):
        if how == "savepoint":
            job.ask_for_savepoint()
        job.until_triggered(checkpoint_id)
        states.append(acknowledged(job, checkpoint_id))
        if how == "declined":
            job.coordinator.decline("sink", checkpoint_id, ValueError("no"))
        elif how == "its task failed":
            job.coordinator.task_ended("sink", failed=True)
        else:
            job.coordinator.acknowledge("sink", checkpoint_id, part("sink"))
        job.completed_ones.clear()
        job.vain.clear()
    gc.collect()
    assert sum(state() is not None for state in states) <= 1, "only the last one that is complete is kept"
    assert len(job.timers._deadlines) < 140, "cancelled timers do not stay in the heap"


def test_a_job_that_has_ended_keeps_neither_state_nor_timers() -> None:
    job = Job().started()
    job.until_triggered(1)
    kept = acknowledged(job, 1)
    job.acknowledge(1, "sink")
    job.ask_for_savepoint()
    job.coordinator.stop(), job.coordinator.forget()
    job.completed_ones, job.stored = {}, None  # of the test alone
    gc.collect()
    assert kept() is None
    assert job.timers.next_deadline() is None


def test_what_is_still_being_stored_at_the_end_of_the_job_takes_the_place_of_the_one_before_it() -> None:
    job = Job().started()
    job.until_triggered(1)
    job.acknowledge(1)
    job.stores_at_once = False
    job.until_triggered(2)
    job.acknowledge(2)
    job.coordinator.stop(), job.coordinator.forget()
    assert (job.discarded, job.stored is not None) == ([], True)
    job.stored(None)  # type: ignore[misc]
    assert (job.discarded, job.coordinator.latest) == ([1], None)
    assert job.timers.next_deadline() is None
