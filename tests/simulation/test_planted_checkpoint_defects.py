"""Defects of checkpoints put into the runtime on purpose: whole lives of jobs must not be blind to any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluiceway.connector.two_phase_commit import _TransactionWriter
from sluiceway.elements import CheckpointBarrier
from sluiceway.network.barrier_alignment import BarrierAlignment
from sluiceway.network.channel_state import Recording
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.operators.sink import SinkOperator
from sluiceway.runtime.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from sluiceway.runtime.jobmanager.notification_retry import NotificationRetry
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.runtime.task.checkpointing import TaskCheckpoints
from sluiceway.runtime.task.operator_chain import OperatorChain
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import SimulationError

Plant = Callable[[Any, str, Any], None]
Found = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return monkeypatch.setattr


@pytest.fixture
def found(live: Any, simulation: SimulationRunner) -> Found:
    def found(job: str, error: Any, match: str, seeds: int = 20, **arguments: Any) -> None:
        with pytest.raises(error, match=match):
            simulation(
                lambda seed: live(job, seed, **{"most_s": 60, "restart": "fixed-delay:20:50ms", **arguments}),
                seeds,
            )

    return found


LOST = r"^lost Counter\(\{"
TOO_OFTEN = r"too often there are Counter\(\{"
WRONG = f"{LOST}|{TOO_OFTEN}|counted twice|something was lost|which is committed, is to be aborted"


def test_a_task_that_acknowledges_before_its_state_is_taken(plant: Plant, found: Found) -> None:
    taken: dict[OperatorChain, list[OperatorSnapshot]] = {}
    snapshot = OperatorChain.snapshot

    def early(self: OperatorChain, checkpoint_id: int, **how: Any) -> list[OperatorSnapshot]:
        now = snapshot(self, checkpoint_id, **how)
        before = taken.get(self, now)
        taken[self] = now
        return before

    plant(OperatorChain, "snapshot", early)
    found("sequence", AssertionError, WRONG)


def test_a_barrier_that_overtakes_records(plant: Plant, found: Found) -> None:
    def hasty(self: ResultPartition, barrier: CheckpointBarrier) -> list[Any]:
        for sender in self._senders:
            sender.send(barrier)
        return []

    plant(ResultPartition, "barrier", hasty)
    found("words", AssertionError, WRONG)


def test_what_a_barrier_has_overtaken_is_left_out(plant: Plant, found: Found) -> None:
    begin = Recording.begin
    plant(Recording, "begin", lambda self, channel, waiting: begin(self, channel, waiting[1:]))
    found("ranges", AssertionError, WRONG, checkpoint_unaligned=True)


@pytest.mark.slow
def test_records_in_flight_that_every_subtask_is_given(plant: Plant, found: Found) -> None:
    on = JobSnapshot.in_flight_on
    plant(JobSnapshot, "in_flight_on", lambda self, *args: (on(self, *args)[0], False))
    found("ranges", (AssertionError, SimulationError), ".", checkpoint_unaligned=True)


def test_barriers_that_are_not_aligned(plant: Plant, found: Found) -> None:
    plant(BarrierAlignment, "_aligns", lambda self, barrier: False)
    found("sequence", AssertionError, WRONG)


def test_a_reader_that_forgets_its_splits(plant: Plant, found: Found) -> None:
    plant(SourceInput, "snapshot", lambda self, checkpoint_id=0: ())
    found("ranges", AssertionError, LOST)


def test_an_enumerator_that_is_one_split_behind(plant: Plant, found: Found) -> None:
    checkpoint = SourceCoordinator.checkpoint
    handed_out: dict[SourceCoordinator, Any] = {}

    def behind(self: SourceCoordinator, checkpoint_id: int) -> Any:
        state = checkpoint(self, checkpoint_id)
        before = handed_out.get(self, state)
        handed_out[self] = state
        return before

    plant(SourceCoordinator, "checkpoint", behind)
    found("ranges", AssertionError, TOO_OFTEN)


def test_an_enumerator_that_leaves_out_a_split(plant: Plant, found: Found) -> None:
    checkpoint = SourceCoordinator.checkpoint
    plant(SourceCoordinator, "checkpoint", lambda self, checkpoint_id: checkpoint(self, checkpoint_id)[1:])
    found("ranges", AssertionError, LOST)


def test_splits_that_were_handed_out_after_the_checkpoint_and_are_forgotten(plant: Plant, found: Found) -> None:
    plant(SourceCoordinator, "reader_failed", lambda self, reader: self._readers.discard(reader))
    found("ranges", AssertionError, LOST)


def test_timers_that_are_not_restored(plant: Plant, found: Found) -> None:
    def forgetful(self: TimedKeyedOperator) -> None:
        super(TimedKeyedOperator, self).open()

    plant(TimedKeyedOperator, "open", forgetful)
    found("timers", AssertionError, LOST)


def test_keyed_state_that_goes_to_the_wrong_subtask(plant: Plant, found: Found) -> None:
    share = JobSnapshot.share
    plant(JobSnapshot, "share", lambda self, vertex, subtask: share(self, vertex, 0))
    found("words", AssertionError, WRONG)


def test_a_sink_that_commits_before_the_checkpoint_is_complete(plant: Plant, found: Found) -> None:
    prepare_commit = _TransactionWriter.prepare_commit

    def hasty(self: _TransactionWriter, checkpoint_id: int) -> list[Any]:
        ready = prepare_commit(self, checkpoint_id)
        for to_be_committed, transaction in ready:
            if to_be_committed:
                self._sink.recover_and_commit(transaction)
        return ready

    plant(_TransactionWriter, "prepare_commit", hasty)
    plant(_TransactionWriter, "commit", lambda self, committables: None)
    found("words", AssertionError, TOO_OFTEN)


@pytest.mark.slow
def test_a_sink_that_commits_what_is_in_no_complete_checkpoint(plant: Plant, found: Found) -> None:
    def hasty(self: SinkOperator, checkpoint_id: int) -> None:
        committables = [c for ready in self._ready.values() for c in ready]
        self._ready.clear()
        self._writer.commit(committables)  # type: ignore[union-attr]

    plant(SinkOperator, "checkpoint_completed", hasty)
    found("words", AssertionError, WRONG, checkpoint_max_concurrent=3)


def test_a_sink_that_forgets_what_an_aborted_checkpoint_had_made_ready(plant: Plant, found: Found) -> None:
    def forgetful(self: SinkOperator, checkpoint_id: int) -> None:
        self._ready.pop(checkpoint_id, None)

    plant(SinkOperator, "checkpoint_aborted", forgetful)
    found("words", AssertionError, LOST)


@pytest.mark.slow
def test_a_sink_that_aborts_what_a_later_checkpoint_has_ended(plant: Plant, found: Found) -> None:
    def recover(self: _TransactionWriter, committables: Sequence[Any]) -> None:
        for to_be_committed, transaction in committables:
            if to_be_committed:
                self._sink.recover_and_commit(transaction)
        for to_be_committed, transaction in committables:
            if not to_be_committed:
                self._sink.recover_and_abort(transaction)
        self._sink.abort_unknown()
        self._open.append(self._sink.begin_transaction())

    plant(_TransactionWriter, "recover", recover)
    found("words", AssertionError, "which is committed, is to be aborted")


def test_a_sink_that_does_not_commit_after_a_restart(plant: Plant, found: Found) -> None:
    def recover(self: _TransactionWriter, committables: Sequence[Any]) -> None:
        self._sink.abort_unknown()
        self._open.append(self._sink.begin_transaction())

    plant(_TransactionWriter, "recover", recover)
    found("words", AssertionError, LOST, fails=0.3)


def test_a_notification_that_comes_twice_and_commits_twice(plant: Plant, found: Found) -> None:
    completed = TaskCheckpoints.completed

    def again(self: TaskCheckpoints, checkpoint_id: int) -> None:
        self._notified = 0
        completed(self, checkpoint_id)

    def checkpoint_completed(self: SinkOperator, checkpoint_id: int) -> None:
        ready = [c for id_, some in self._ready.items() if id_ <= checkpoint_id for c in some]
        self._writer.commit(ready)  # type: ignore[union-attr]

    plant(TaskCheckpoints, "completed", again)
    plant(SinkOperator, "checkpoint_completed", checkpoint_completed)
    found("words", AssertionError, "which is committed, is to be committed")


@pytest.mark.slow
def test_an_acknowledgement_that_comes_twice_and_takes_its_part_away(plant: Plant, found: Found) -> None:
    acknowledge = CheckpointCoordinator.acknowledge

    def forgetful(self: CheckpointCoordinator, attempt: str, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        self._answered.setdefault(checkpoint_id, set()).discard(attempt)
        acknowledge(self, attempt, checkpoint_id, snapshot)

    plant(CheckpointCoordinator, "acknowledge", forgetful)
    found("words", Exception, "No such file or directory", unreliable=0.3)


@pytest.mark.slow
def test_tasks_that_are_not_told_again(plant: Plant, found: Found) -> None:
    plant(NotificationRetry, "expect", lambda self, attempts, checkpoint_id, completed: None)
    found("words", SimulationError, "has not ended within 60 s of virtual time", 100, unreliable=0.3)
