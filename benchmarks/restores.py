"""Restores: the time from the start to the end of a job that restores a million keys and processes them again."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from typing import Any

import sluiceway as sw
from benchmarks.checkpoints import is_there, missing
from benchmarks.harness import Plan, Row, timed

__all__ = ["measure"]

MANY = 1_000_000
RESTORE_S: dict[str, float | None] = {"memory": 2.0, "rocksdb": None}


def measure(plan: Plan) -> Iterator[Row]:
    for backend in RESTORE_S:
        title = f"from the start to the end of a job that restores a million keys, {backend}"
        yield _restore(title, backend, plan) if is_there(backend) else missing(title, "s")


def _restore(title: str, backend: str, plan: Plan) -> Row:
    keys = plan.size(MANY, 2_000)
    seconds = []

    def run(**options: Any) -> None:
        flow = sw.Pipeline("restored")
        pairs = flow.from_sequence(0, keys - 1).map(lambda n: (f"key{n}", n)).key_by(lambda pair: pair[0])
        pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").for_each(lambda pair: None)
        flow.run(state_backend=backend, **options)

    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        run(checkpoint_interval="10min", checkpoints=directory)
        for _ in range(plan.runs):
            seconds.append(timed(lambda: run(from_checkpoint=directory)))
    return Row(
        title,
        "s",
        tuple(t.wall for t in seconds),
        aim=RESTORE_S[backend],
        note=f"processor time {statistics.median(t.cpu for t in seconds):.2f} s",
    )
