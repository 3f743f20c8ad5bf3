"""Whatever the order and the delays: the results are those of a run without simulation."""

from __future__ import annotations

from typing import Any

import pytest
from effort import fresh_seeds, tries

from sluiceway.engine import JobStatus
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import simulate


def check(shape: Any, simulation: SimulationRunner, seeds: int | list[int]) -> None:
    expected = shape.expected()

    def trial(seed: int) -> None:
        flow, results = shape.build()
        workers = 2 + seed % 2
        result = simulate(flow, seed=seed, workers=workers, parallelism=workers, batch_size=1 + seed % 5)
        assert result.status is JobStatus.FINISHED
        assert shape.essence(results) == expected

    simulation(trial, seeds)


def test_any_order_and_any_delay_gives_the_same_results(shape: Any, simulation: SimulationRunner) -> None:
    check(shape, simulation, tries(4, 16))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_order_and_any_delay_gives_the_same_results_for_long(shape: Any, simulation: SimulationRunner) -> None:
    check(shape, simulation, fresh_seeds(700))
