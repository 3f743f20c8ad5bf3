"""Small batches: a keyed sum in batches of eight records, against batches of 1,024."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import sluiceway as sw
from benchmarks.harness import Plan, Row, timed

__all__ = ["measure"]

SMALL = 8


def measure(plan: Plan) -> Iterator[Row]:
    yield _small_batches(plan)


def _small_batches(plan: Plan) -> Row:
    """Measure the work per batch: mails, timers, barriers, room in the outputs."""
    records = plan.size(400_000, 2_000)

    def run(size: int) -> None:
        flow = sw.Pipeline("small")
        keyed = flow.from_sequence(0, records - 1).key_by(lambda n: n % 1_000)
        keyed.reduce(lambda a, b: a + b).for_each(lambda n: None)
        flow.run(batch_size=size)

    pairs = [(timed(lambda: run(SMALL)), timed(lambda: run(1_024))) for _ in range(plan.runs)]
    each = statistics.median((a.cpu - b.cpu) / records * SMALL for a, b in pairs)
    return Row(
        f"keyed sum in batches of {SMALL} records",
        "x speed",
        tuple(full.wall / small.wall for small, full in pairs),
        note=f"{each * 1e6:.1f} us of processor time for each batch",
        against="batches of 1,024",
    )
