"""Jobs of every shape, that crash, are stopped, lost, cancelled, rescaled: their results are those of a calm run.

The sinks commit in two phases, and some commits fail; messages about checkpoints are lost, doubled and late.
"""

from __future__ import annotations

from typing import Any

import pytest
from effort import fresh_seeds

from sluiceway.testing.pytest_plugin import SimulationRunner


def test_results_are_those_of_a_calm_run(job: Any, live: Any, simulation: SimulationRunner) -> None:
    simulation(lambda seed: live(job, seed), 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_results_are_those_of_a_calm_run_for_long(job: Any, live: Any, simulation: SimulationRunner) -> None:
    simulation(lambda seed: live(job, seed), fresh_seeds(40))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_several_checkpoints_at_a_time_that_come_through_rarely(
    job: Any, live: Any, simulation: SimulationRunner
) -> None:
    hard = {"unreliable": 0.2, "checkpoint_max_concurrent": 3, "checkpoint_retained": 2}
    hard |= {"hangs": 1, "heartbeat_timeout": "5s"}
    simulation(lambda seed: live(job, seed, **hard), fresh_seeds(15))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_rocksdb(job: Any, live: Any, simulation: SimulationRunner) -> None:
    pytest.importorskip("rocksdict")
    simulation(lambda seed: live(job, seed, state_backend="rocksdb"), fresh_seeds(10))


UNALIGNED: dict[str, dict[str, Any]] = {
    "unaligned": {"checkpoint_unaligned": True},
    "timeout": {"checkpoint_unaligned": True, "checkpoint_aligned_timeout": "4ms"},
}


@pytest.mark.parametrize("barriers", [pytest.param("unaligned", marks=pytest.mark.slow), "timeout"])
def test_with_barriers_that_overtake(job: Any, live: Any, barriers: str, simulation: SimulationRunner) -> None:
    simulation(lambda seed: live(job, seed, **UNALIGNED[barriers]), 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("barriers", UNALIGNED)
def test_with_barriers_that_overtake_for_long(
    job: Any, live: Any, barriers: str, simulation: SimulationRunner
) -> None:
    simulation(lambda seed: live(job, seed, **UNALIGNED[barriers]), fresh_seeds(25))
