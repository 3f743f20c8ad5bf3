"""A seed is all there is to a run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from effort import tries

import sluiceway as sw
from sluiceway.testing.simulation import Simulation

FAULTS: dict[str, Any] = {"crashes": 1, "hangs": 1, "restart": "fixed-delay:9:1s", "heartbeat_timeout": "5s"}


def digest(shape: Any, seed: int) -> str:
    flow, _ = shape.build()
    result = Simulation(flow, seed=seed, workers=3, parallelism=3, batch_size=4, **FAULTS).run()
    assert len(result.trace) > 100
    return result.trace.digest


def test_a_seed_gives_the_same_run_event_by_event_each_time(shape: Any) -> None:
    seeds = range(tries(2, 4))
    digests = [digest(shape, seed) for seed in seeds]
    assert [digest(shape, seed) for seed in seeds] == digests
    assert len(set(digests)) == len(seeds), "other seeds must give other runs"


PROGRAM = """
import sluiceway as sw
import sluiceway as sw
from sluiceway.testing.simulation import Simulation

for seed in range(2):
    flow = sw.Pipeline("words")
    words = flow.from_collection(["to be or not to be", "be that as it may"] * 9).flat_map(str.split)
    words.key_by(lambda word: word).count().collect()
    result = Simulation(
        flow, seed=seed, workers=3, parallelism=3, batch_size=2, crashes=2, restart="fixed-delay:9:1s",
        checkpoint_interval="5ms", checkpoint_timeout="1s", checkpoint_tolerated_failures=99, unreliable=0.2,
    ).run()
    print(result.trace.digest)
"""


def test_the_hashes_of_strings_have_no_say_in_it() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "1")
    ]
    one, other = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(one.split()) == 2
    assert one == other


def test_with_checkpoints_and_the_restarts_that_come_with_them_too() -> None:
    def digest(seed: int) -> str:
        flow, _ = word_count()
        arguments = {"workers": 2, "parallelism": 2, "crashes": 2, "checkpoint_interval": "10ms"}
        result = Simulation(flow, seed=seed, **arguments).run()
        restarts.append(result.restarts)
        return result.trace.digest

    restarts: list[int] = []
    assert [digest(seed) for seed in range(4)] == [digest(seed) for seed in range(4)]
    assert sum(restarts) > 0


def word_count() -> tuple[sw.Pipeline, object]:
    flow = sw.Pipeline("words")
    words = flow.from_collection(["to be or not to be", "be that as it may"] * 9).flat_map(str.split)
    return flow, words.key_by(lambda word: word).count().collect()
