"""Workers that crash or hang, and a job manager that is lost: what becomes of the job, and of what it held.

Every simulation looks at its end whether a worker still has anything of the job: channels, buffers, itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import fresh_seeds, tries

import sluiceway as sw
from sluiceway.checkpoint import CheckpointMetadata
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, NoResourceAvailableError
from sluiceway.runtime.cluster.resource_manager import WorkerLostError
from sluiceway.runtime.jobmanager.checkpoint_coordinator import CompletedCheckpoint
from sluiceway.runtime.jobmanager.checkpoint_store import TemporaryCheckpointStore
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import (
    CancelJob,
    Crash,
    Fault,
    Hang,
    JobManagerLostError,
    LoseJobManager,
    Simulation,
    SimulationResult,
    TakeSavepoint,
    simulate,
)

RESTARTS: dict[str, Any] = {"restart": "fixed-delay:20:1s"}


def run(flow: sw.Pipeline, seed: int, **arguments: Any) -> SimulationResult:
    return Simulation(flow, seed=seed, **{"workers": 2, "parallelism": 2, "batch_size": 4, **arguments}).run()


# ---- without checkpoints ------------------------------------------------------------------------------------


def test_without_a_restart_strategy_a_crash_fails_the_job(shape: Any, simulation: SimulationRunner) -> None:
    expected = shape.expected()

    def trial(seed: int) -> None:
        flow, results = shape.build()
        result = run(flow, seed, crashes=1)
        if result.status is JobStatus.FAILED:
            assert isinstance(result.failure, WorkerLostError)
            assert "was killed by SIGKILL" in str(result.failure)
            assert len(result.faults) == 1
        else:  # after the job's end, or before the job was on that worker
            assert shape.essence(results) == expected

    simulation(trial, tries(3, 12))


def begins_anew(shape: Any, simulation: SimulationRunner, seeds: int | list[int], **faults: Any) -> None:
    """What begins anew without checkpoints gives everything again: the last attempt has all the results."""
    expected = shape.expected()
    flow, results = shape.build()
    simulate(flow, seed=0, workers=1)
    count = len(results)

    def trial(seed: int) -> None:
        flow, results = shape.build()
        workers = 2 + seed % 2
        result = run(flow, seed, workers=workers, parallelism=workers, **RESTARTS, **faults)
        assert result.status is JobStatus.FINISHED, result.failure
        assert result.restarts <= len(result.faults)
        assert shape.essence(results[len(results) - count :]) == expected

    simulation(trial, seeds)


def test_with_a_restart_strategy_the_input_is_read_again(shape: Any, simulation: SimulationRunner) -> None:
    begins_anew(shape, simulation, 4, crashes=2)


def test_a_worker_that_hangs_for_too_long_is_killed(shape: Any, simulation: SimulationRunner) -> None:
    begins_anew(shape, simulation, 3, hangs=2, heartbeat_timeout="5s")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_with_a_restart_strategy_the_input_is_read_again_for_long(
    shape: Any, simulation: SimulationRunner
) -> None:
    begins_anew(shape, simulation, fresh_seeds(500), crashes=3, hangs=1, heartbeat_timeout="5s")


# ---- at a given moment --------------------------------------------------------------------------------------


def few_words() -> tuple[sw.Pipeline, Sequence[tuple[str, int]]]:
    flow = sw.Pipeline("few")
    lines = flow.from_collection(["a b a", "c a b", "b c", "a"])
    return flow, lines.flat_map(str.split).key_by(lambda word: word).count().collect()


FEW = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("c", 2)]


def crash_at(step: int, worker: str) -> None:
    flow, counts = few_words()
    result = run(flow, 7, batch_size=1, faults=[Crash(step, worker)], **RESTARTS)
    assert sorted(counts[-len(FEW) :]) == FEW, f"{worker} crashed before step {step}"
    assert len(counts) == len(FEW) or result.restarts == 1


def steps_of_few_words() -> int:
    flow, counts = few_words()
    result = run(flow, 7, batch_size=1)
    assert sorted(counts) == FEW
    assert result.steps > 50
    return result.steps


@pytest.mark.parametrize("worker", ["worker-1", "worker-2"])
def test_a_crash_at_many_steps_of_a_small_job(worker: str) -> None:
    for step in range(1, steps_of_few_words(), tries(5, 2)):
        crash_at(step, worker)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("worker", ["worker-1", "worker-2"])
def test_a_crash_at_every_step_of_a_small_job(worker: str) -> None:
    for step in range(1, steps_of_few_words()):
        crash_at(step, worker)


def test_a_worker_that_stands_still_for_a_moment_is_waited_for() -> None:
    flow, counts = few_words()
    result = run(flow, 1, faults=[Hang(60, 2000, "worker-1")])
    assert sorted(counts) == FEW
    assert result.faults == (Hang(60, 2000, "worker-1"),)
    assert result.virtual_ms > 2000


def test_a_worker_that_stands_still_for_long_is_killed_and_replaced() -> None:
    flow, counts = few_words()
    result = run(flow, 1, faults=[Hang(60, 60_000, "worker-1")], heartbeat_timeout="5s", **RESTARTS)
    assert sorted(counts[-len(FEW) :]) == FEW
    assert result.restarts == 1
    assert result.trace.matching("is killed by the job manager")[0].where == "worker-1"
    assert result.trace.matching("worker-3")


def test_a_job_that_fails_again_and_again_is_given_up() -> None:
    flow, _ = few_words()
    faults: list[Fault] = [Crash(step) for step in range(60, 2000, 60)]
    result = run(flow, 1, faults=faults, restart="fixed-delay:2:1s")
    assert result.status is JobStatus.FAILED
    assert result.restarts == 2
    assert isinstance(result.failure, WorkerLostError)
    assert any("the job is not restarted" in note for note in result.failure.__notes__)


def test_a_job_that_is_cancelled_is_cancelled_whatever_happens_then(simulation: SimulationRunner) -> None:
    def trial(seed: int) -> None:
        flow, _ = few_words()
        at = 1 + seed * 37 % 60
        faults = [CancelJob(at), [Crash(at + 5), Hang(at + 5, 60_000), Crash(max(1, at - 5))][seed % 3]]
        result = run(flow, seed, batch_size=1, faults=faults, heartbeat_timeout="5s", **RESTARTS)
        assert result.status is JobStatus.CANCELED

    simulation(trial, tries(6, 40))


def test_where_buffers_are_short_nothing_is_held_afterwards(shape: Any, simulation: SimulationRunner) -> None:
    def trial(seed: int) -> None:
        flow, _ = shape.build()
        result = run(flow, seed, parallelism=6, network_buffers=2 + seed, restart="fixed-delay:2:1s")
        assert isinstance(result.failure, NoResourceAvailableError)
        assert "network buffers" in str(result.failure)

    simulation(trial, tries(1, 3))


def test_what_a_function_raises_fails_the_job_and_nothing_is_held(simulation: SimulationRunner) -> None:
    def trial(seed: int) -> None:
        def check(number: int) -> tuple[int, int]:
            if number == 3 * seed:
                raise ValueError(number)
            return number % 5, number

        flow = sw.Pipeline("check")
        pairs = flow.from_collection(range(60)).map(check).key_by(lambda pair: pair[0])
        pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).rebalance().map(lambda pair: pair).collect()
        result = run(flow, seed, restart="fixed-delay:1:1s" if seed % 2 else "none")
        assert isinstance(result.failure, ValueError)

    simulation(trial, tries(4, 20))


def test_without_their_job_manager_workers_end_by_themselves(simulation: SimulationRunner) -> None:
    def trial(seed: int) -> None:
        flow, _ = few_words()
        at = 1 + seed * 37 % 60
        faults = [LoseJobManager(at), *([Hang(at, 90_000)] if seed % 4 == 0 else [])]
        with pytest.raises(JobManagerLostError, match="the job manager was lost"):
            simulate(flow, seed=seed, parallelism=2, batch_size=1, faults=faults)

    simulation(trial, tries(6, 40))


def test_a_checkpoint_that_cannot_be_read_leaves_nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks that were to go on from it have slots by then, and were never deployed."""

    def read(
        self: TemporaryCheckpointStore, checkpoint: CompletedCheckpoint, metadata: CheckpointMetadata
    ) -> JobSnapshot:
        raise CheckpointError("it is damaged")

    monkeypatch.setattr(TemporaryCheckpointStore, "_read", read)
    flow, _ = many_numbers()
    crash = Crash(250, "worker-1")
    result = run(flow, 3, checkpoint_interval="5ms", faults=[crash], **RESTARTS)
    assert result.faults == (crash,)
    assert str(result.failure) == "it is damaged"


@pytest.mark.parametrize("crashes", [False, True])
def test_a_savepoint_that_its_job_goes_back_behind_is_not_begun_with(crashes: bool, tmp_path: Path) -> None:
    flow, _ = many_numbers()
    faults: list[Fault] = [TakeSavepoint(100, str(tmp_path)), LoseJobManager(1200)]
    faults += [Crash(500)] if crashes else []
    result = run(flow, 2, faults=faults, **RESTARTS)
    assert (len(result.savepoints), result.restarts) == (1, int(crashes))
    flow, more = many_numbers()
    if crashes:
        with pytest.raises(CheckpointError, match="there are only savepoints whose run has failed after them"):
            run(flow, 2, from_checkpoint=str(tmp_path))
    run(flow, 2, from_checkpoint=result.savepoints[0] if crashes else str(tmp_path))
    assert len(more) < 3000


def many_numbers() -> tuple[sw.Pipeline, Sequence[int]]:
    flow = sw.Pipeline("many")
    return flow, flow.from_collection(range(3000)).uid("many").rebalance().map(lambda n: n).collect()


def test_savepoints_are_taken_and_the_job_ends_with_one(tmp_path: Path) -> None:
    flow, numbers = many_numbers()
    asked = [TakeSavepoint(100, str(tmp_path)), TakeSavepoint(600, str(tmp_path), stop=True)]
    result = run(flow, 2, faults=asked)
    assert result.status is JobStatus.FINISHED
    assert result.faults == tuple(asked)
    assert len(result.savepoints) == 2
    assert result.ended_with == result.savepoints[1]
    assert 0 < len(numbers) < 3000
    flow, more = many_numbers()
    rest = run(flow, 2, from_checkpoint=result.ended_with)
    assert (rest.savepoints, rest.ended_with) == ((), "")
    assert sorted([*numbers, *more]) == list(range(3000))
