"""A seed that fails says how to see it again, and it happens again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import SEED_VARIABLE, SimulationError, for_seeds, simulate

# Two sources make one stream, and the function relies on one of them being first.
DEFECT = """
import pytest
import sluiceway as sw
from sluiceway.testing.simulation import simulate

tried = []

def test_prices_are_there_before_orders(simulation):
    def trial(seed):
        print("tried", seed)
        flow = sw.Pipeline("orders")
        prices = flow.from_collection([("price", 3)])
        orders = flow.from_collection([("order", 1), ("order", 2)])
        known = {}

        def apply(record):
            kind, number = record
            if kind == "price":
                known["price"] = number
                return []
            return [number * known["price"]]

        totals = prices.union(orders).flat_map(apply).collect()
        simulate(flow, seed=seed)
        assert sorted(totals) == [3, 6]

    simulation(trial, seeds=50)
"""


def pytest_in(directory: Path, *arguments: str, seed: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, SEED_VARIABLE: seed}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_the_line_that_a_planted_defect_prints_shows_it_again(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["sluiceway.testing.pytest_plugin"]\n')
    (tmp_path / "test_orders.py").write_text(DEFECT)
    failed = pytest_in(tmp_path)
    assert failed.returncode == 1, failed.stdout
    line = re.search(rf"to see it again: {SEED_VARIABLE}=(\d+) python -m pytest (.*)", failed.stdout)
    assert line is not None, failed.stdout
    seed, arguments = line[1], shlex.split(line[2])
    assert arguments == ["test_orders.py::test_prices_are_there_before_orders"]
    tried = re.findall(r"tried (\d+)", failed.stdout)
    assert 1 <= len(tried) < 50, "a defect that shows at every seed or at none proves nothing"
    assert tried[-1] == seed

    again = pytest_in(tmp_path, *arguments, seed=seed)
    assert again.returncode == 1
    assert re.findall(r"tried (\d+)", again.stdout) == [seed]
    assert "KeyError: 'price'" in again.stdout


def test_the_number_of_seeds_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["sluiceway.testing.pytest_plugin"]\n')
    (tmp_path / "test_seeds.py").write_text(
        'def test_it(simulation):\n    simulation(lambda seed: print("tried", seed), seeds=7)\n'
    )
    assert pytest_in(tmp_path, "--simulation-seeds", "3").stdout.count("tried") == 3
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    tried: list[int] = []
    SimulationRunner(None)(tried.append, seeds=7)
    assert tried == [0, 1, 2, 3, 4, 5, 6]
    monkeypatch.setenv(SEED_VARIABLE, "1234")
    SimulationRunner(3)(tried.append)
    assert tried[7:] == [1234]


def failing() -> sw.Pipeline:
    flow = sw.Pipeline("failing")
    flow.from_collection([1, 2, 0]).map(lambda n: 1 // n).collect()
    return flow


def test_what_the_job_fails_with_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        simulate(failing, seed=11)
    assert raised.value.__notes__[-1] == "to see it again: simulate(..., seed=11)"
    monkeypatch.setenv(SEED_VARIABLE, "12")
    with pytest.raises(ZeroDivisionError) as raised:
        simulate(failing)
    assert f"{SEED_VARIABLE}=12 python -m pytest" in raised.value.__notes__[-1]
    with pytest.raises(ZeroDivisionError) as raised:
        for_seeds(lambda seed: simulate(failing, seed=seed), [3, 4])
    assert f"{SEED_VARIABLE}=12 python -m pytest" in raised.value.__notes__[-1]
    assert sum("to see it again" in note for note in raised.value.__notes__) == 1


def test_a_seed_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, simulation: SimulationRunner) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "many")
    with pytest.raises(sw.ConfigurationError, match="_SEED is 'many': it must be a whole number"):
        simulation(lambda seed: None)


def test_an_error_of_the_runtime_comes_with_the_last_events() -> None:
    flow = sw.Pipeline("endless")
    flow.from_collection(range(100_000)).collect()
    with pytest.raises(SimulationError, match="has not ended after 50 steps") as raised:
        simulate(flow, seed=1, most_steps=50, parallelism=1)
    assert any("the last events" in note and "job manager" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("seeds", [0, -3])
def test_no_seed_at_all_is_refused(seeds: int) -> None:
    with pytest.raises(sw.ConfigurationError, match=f"seeds is {seeds}: at least 1 has to be tried"):
        for_seeds(lambda seed: None, seeds)
