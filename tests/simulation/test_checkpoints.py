"""With checkpoints, state is as if nothing had happened, whatever crashes and whenever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from effort import fresh_seeds, tries

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import Crash, Simulation, simulate

OFTEN: dict[str, Any] = {"checkpoint_interval": "10ms", "restart": "fixed-delay:50:200ms"}
BARRIERS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"checkpoint_unaligned": True},
    "timeout": {"checkpoint_unaligned": True, "checkpoint_aligned_timeout": "3ms"},
    "unaligned, state sent": {"checkpoint_unaligned": True, "shares_files": False},
}
each_barrier = pytest.mark.parametrize("barriers", BARRIERS)
KEYS = 5
EACH = 24


class InTurn(sw.KeyedProcessFunction[int, tuple[int, int], tuple[int, int]]):
    """Wants the numbers of each key to come in turn, none lost and none twice."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.next = context.get_state(sw.ValueStateDescriptor("next", int))

    def process_element(
        self, value: tuple[int, int], ctx: sw.KeyedProcessFunction.Context
    ) -> Iterator[tuple[int, int]]:
        key, number = value
        wanted = self.next.value() or 0
        if number != wanted:
            raise AssertionError(f"key {key}: {number} came where {wanted} was to come")
        self.next.update(wanted + 1)
        yield key, number


def numbers() -> tuple[sw.Pipeline, Sequence[tuple[int, int]]]:
    flow = sw.Pipeline("numbers")
    # One reader, so that the order of each key's numbers is the source's.
    source = flow.from_collection([(key, number) for number in range(EACH) for key in range(KEYS)])
    checked = source.set_parallelism(1).key_by(lambda pair: pair[0]).process(InTurn())
    return flow, checked.collect()


EXPECTED = {(key, number) for number in range(EACH) for key in range(KEYS)}


def run_numbers(seed: int, **arguments: Any) -> None:
    flow, results = numbers()
    given = {"workers": 3, "parallelism": 3, "batch_size": 2, **OFTEN, **arguments}
    result = Simulation(flow, seed=seed, **given).run()
    assert result.status is JobStatus.FINISHED, result.failure
    assert result.trace.matching("CheckpointCompleted")
    assert set(results) == EXPECTED


@each_barrier
def test_no_record_is_lost_and_none_counts_twice(barriers: str, simulation: SimulationRunner) -> None:
    options = {"heartbeat_timeout": "5s", **BARRIERS[barriers]}
    simulation(lambda seed: run_numbers(seed, crashes=3, hangs=1, **options), tries(4, 10))


def test_without_checkpoints_that_does_not_hold(simulation: SimulationRunner) -> None:
    """So the test above does prove something: it is the checkpoints that make it so."""
    flow, results = numbers()
    restarts = {**OFTEN, "checkpoint_interval": 0}
    result = simulate(flow, seed=1, workers=3, parallelism=3, batch_size=2, faults=[Crash(180)], **restarts)
    assert result.restarts == 1
    assert len(results) > len(EXPECTED)


@each_barrier
def test_a_crash_between_any_two_steps_of_a_checkpoint(barriers: str, simulation: SimulationRunner) -> None:
    """The same run each time, but for the moment of the crash."""
    moments = tries(5, 10)

    def trial(seed: int) -> None:
        at = seed * 10 // moments
        run_numbers(5, faults=[Crash(90 + 7 * at, "worker-1"), Crash(400 + 5 * at)], **BARRIERS[barriers])

    simulation(trial, moments)


@each_barrier
@pytest.mark.parametrize("shape", ["words", "windows"], indirect=True)
def test_counts_and_windows_are_those_of_a_run_without_crashes(
    shape: Any, barriers: str, simulation: SimulationRunner
) -> None:
    expected = set(shape.expected())
    often = {**OFTEN, **BARRIERS[barriers]}

    def trial(seed: int) -> None:
        flow, results = shape.build()
        workers = 2 + seed % 2
        simulate(flow, seed=seed, workers=workers, parallelism=workers, batch_size=3, crashes=2, **often)
        assert set(results) == expected

    simulation(trial, tries(3, 6))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_barrier
def test_no_record_is_lost_and_none_counts_twice_for_long(barriers: str, simulation: SimulationRunner) -> None:
    options = {"heartbeat_timeout": "5s", **BARRIERS[barriers]}
    simulation(lambda seed: run_numbers(seed, crashes=4, hangs=1, **options), fresh_seeds(1000))
