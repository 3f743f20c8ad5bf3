"""State in columns that checkpoints share: results after restores from such checkpoints are those without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import first
from tests.core.table.column_harness import ColumnHarness, TwoColumnHarness, many_steps
from tests.core.table.shared_blocks_job import begun, ended, newest

import sluiceway as sw
from sluiceway.checkpoint import StateReader, shared_files, write_subtask
from sluiceway.elements import MAX_WATERMARK
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.state.heap import shared
from sluiceway.table import TableStream, agg
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_filesystem._local import LocalStorage

SCHEMA = pa.schema([("user", pa.string()), ("price", pa.int64())])
OTHER = pa.schema([("who", pa.string()), ("paid", pa.int64())])
NAMED = {"n": agg.count(), "total": agg.sum("price"), "prices": agg.collect("price"), "last": agg.last("price")}
BACKENDS = ["memory", "filesystem", "memory", "filesystem", "rocksdb"]
ONE: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda rows: rows.window(TumblingEventTimeWindows("10ms")).aggregate(**NAMED),
    "sliding": lambda rows: (
        rows.window(SlidingEventTimeWindows("20ms", "5ms")).allowed_lateness(8).aggregate(**NAMED)
    ),
    "sessions": lambda rows: rows.window(EventTimeSessionWindows("4ms")).aggregate(**NAMED),
    "totals": lambda rows: rows.aggregate(**NAMED),
    "running": lambda rows: rows.running(n=agg.count(), total=agg.sum("price")),
    "distinct": lambda rows: rows.distinct(),
    "over": lambda rows: rows.over(rows=3, range=20).aggregate(**NAMED),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "interval join": lambda rows, other: rows.interval_join(other, -5, 5),
    "full interval join": lambda rows, other: rows.interval_join(other, -5, 5, how="full"),
    "as-of join": lambda rows, other: rows.asof_join(other, tolerance="20ms"),
}


def harness(kind: str, **options: Any) -> Any:
    def one(stream: Any) -> Any:
        keyed = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        return ONE[kind](keyed).uid("it").to_records()

    def two(left: Any, right: Any) -> Any:
        rows = TableStream(left._pipeline, left._inputs, SCHEMA, "left").key_by("user")
        other = TableStream(right._pipeline, right._inputs, OTHER, "right").key_by("who")
        return TWO[kind](rows, other).uid("it").to_records()

    return (
        ColumnHarness(one, SCHEMA, **options) if kind in ONE else TwoColumnHarness(two, SCHEMA, OTHER, **options)
    )


class Checkpoints:
    """Checkpoints of one run, each referring to the files of the one before."""

    def __init__(self, place: Path, backend: str = "memory") -> None:
        # Rows, as those of a savepoint, which any backend reads.
        self.canonical = backend == "rocksdb"
        self.storage = LocalStorage(str(place))
        self.count = 0
        self.referred = 0
        self.known: dict[int, Any] = {}

    def take(self, one: Any) -> JobSnapshot:
        """Take a checkpoint, and return what is in its files."""
        self.count += 1
        directory = f"run/chk-{self.count}"
        parts = []
        for number, subtask in enumerate(one._subtasks):
            entry = write_subtask(
                self.storage,
                directory,
                f"{number}.state",
                number,
                subtask.snapshot(),
                canonical=self.canonical,
                known=self.known.get(number),
            )
            self.referred += len(shared_files(entry).keys() & self.known.get(number, {}).keys())
            self.known[number] = shared_files(entry)
            reader = StateReader(self.storage, directory)
            parts += [replace(reader.operator(each), subtask=number) for each in entry.operators]
        return JobSnapshot(tuple(parts))


def results(kind: str, steps: list[Any], place: Path) -> tuple[list[Any], int]:
    """Return the results, and to how many files checkpoints have referred that an earlier one had written."""
    found: list[Any] = []
    one, kept, now = harness(kind), Checkpoints(place / "0"), 0
    referred = restarts = 0
    try:
        for step in [*steps, MAX_WATERMARK]:
            if isinstance(step, int):
                now = step if step == MAX_WATERMARK else now + step
                one.process_watermark(now)
            elif isinstance(step, tuple):
                taken = kept.take(one)
                if step[0]:
                    found += one.records
                    one.close()
                    referred, restarts = referred + kept.referred, restarts + 1
                    one = harness(kind, parallelism=step[0], state_backend=step[1], restored=taken)
                    kept = Checkpoints(place / f"{restarts}", step[1])
            else:
                for user, price, stamp, port in step:
                    if kind in ONE:
                        one.process_batch([{"user": user, "price": price}], [now + stamp - 3])
                    elif port:
                        one.process_batch2([{"who": user, "paid": price}], [now + stamp - 3])
                    else:
                        one.process_batch1([{"user": user, "price": price}], [now + stamp - 3])
        found += one.records
    finally:
        one.close()
    return sorted(found, key=repr), referred + kept.referred


@pytest.mark.parametrize(
    "least", [1, pytest.param(2000, marks=pytest.mark.slow)], ids=["all shared", "some shared"]
)
@pytest.mark.parametrize(("seed", "kind"), first(10, [(n, k) for n in range(3) for k in (*ONE, *TWO)]))
def test_results_are_those_without_restores(
    seed: int, kind: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_LEAST", least)
    steps = many_steps(
        seed,
        lambda dice, rows: [("abcdef"[n % 6], n, time, dice.randrange(2)) for n, time in rows],
        lambda dice: (dice.choice([0, 0, 0, 1, 2, 3]), dice.choice(BACKENDS)),
        90,
    )
    # More checkpoints than restores, so that they have something to refer to.
    steps = [
        part for number, step in enumerate(steps) for part in ([step, (0, "")] if number % 4 == 0 else [step])
    ]
    plain = [step for step in steps if not isinstance(step, tuple)]
    found, referred = results(kind, steps, tmp_path)
    assert found == results(kind, plain, tmp_path)[0]
    assert referred or kind == "sessions" or least > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"state_backend": "memory"}, {"state_backend": "filesystem", "parallelism": 2}),
        ({"state_backend": "filesystem", "parallelism": 2, "workers": 2}, {"state_backend": "memory"}),
        (
            {"state_backend": "memory", "parallelism": 2},
            {"state_backend": "rocksdb", "parallelism": 3, "workers": 2},
        ),
    ],
)
def test_a_job_goes_on_from_a_checkpoint(before: dict[str, Any], after: dict[str, Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    begun(tmp_path / "out", str(kept), **before)
    storage = LocalStorage(str(kept))
    found = newest(storage)
    assert found is not None
    directory, metadata = found
    assert any(name.startswith("../shared/") for name in metadata.files())
    # Programs that read checkpoints see all rows.
    saved = sw.savepoint.read(str(kept / directory))["sums"]["slices in columns"]
    assert sorted({row["key"] for row in saved.rows()}) == list(range(50))
    texts = [each["value"] for row in saved.rows() for each in row["texts"]]
    assert len(set(texts)) == len(texts) == sum(row["n"]["count"] for row in saved.rows()) > 3_000
    ended(tmp_path / "out", str(kept), **after)
