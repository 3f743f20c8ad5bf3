"""Ten minutes of random kills around Kafka, as ``python -m benchmarks.kafkasoak`` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kafkasoak import CheckedCounts, CheckedWindows

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(2400)
def test_random_kills_of_workers_job_manager_and_brokers() -> None:
    pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
    minutes = os.environ.get("SOAK_MINUTES", "10")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafkasoak", "--minutes", minutes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 2:  # no Java, or no Maven
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_what_counts_as_lost_doubled_wrong_and_out_of_order() -> None:
    good = CheckedCounts({"a": 2, "b": 1})
    good.take([["a", 0, 1], ["b", 0, 1], ["a", 1, 2]])
    assert (good.received, good.lost, good.doubled, good.wrong, good.out_of_order) == (3, 0, 0, 0, 0)
    bad = CheckedCounts({"a": 4, "b": 1})
    bad.take([["a", 0, 1], ["a", 2, 2], ["a", 1, 2], ["a", 1, 2], ["c", 0, 1]])
    assert (bad.lost, bad.doubled, bad.wrong, bad.out_of_order) == (2, 1, 2, 2)


def test_what_counts_as_a_wrong_window() -> None:
    expected = {("a", 0): [1, 0], ("a", 10): [2, 3], ("b", 0): [1, 0]}
    good = CheckedWindows(expected)
    good.take([["a", 0, 1, 0], ["b", 0, 1, 0], ["a", 10, 2, 3]])
    assert (good.received, good.lost, good.doubled, good.wrong, good.out_of_order) == (3, 0, 0, 0, 0)
    bad = CheckedWindows(expected)
    bad.take([["a", 10, 2, 4], ["a", 0, 1, 0], ["a", 0, 1, 0], ["a", 20, 1, 0]])
    assert (bad.lost, bad.doubled, bad.wrong, bad.out_of_order) == (1, 1, 2, 2)
