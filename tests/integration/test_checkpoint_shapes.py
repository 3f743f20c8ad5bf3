"""Every shape of pipeline gives after failures what it gives without, to the record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.testing import FailOnce, NumberFiles
from sluiceway.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

COUNT = 6_000


class Lines(NumberFiles):
    """Keeps records of any kind, as they are shown."""

    def write(self, transaction: str, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        super().write(transaction, [repr(value) for value in values], None)  # type: ignore[misc]

    def lines(self) -> list[str]:
        files = sorted(Path(self._directory).glob("*.done"))
        return sorted(line for file in files for line in file.read_text().splitlines())


def numbers(flow: sw.Pipeline, failing: FailOnce | None = None, **stamped: Any) -> sw.DataStream[int]:
    stream = flow.source(GeneratorSource(count=COUNT, rate=60_000, **stamped))
    return stream if failing is None else stream.map(failing)


def union(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[Any]:
    both = numbers(flow, failing).union(flow.from_collection(range(500)), flow.from_collection([]))
    return both.key_by(lambda v: v % 7).count()


class Both(sw.KeyedCoProcessFunction[int, int, int, tuple[int, int]]):
    def open(self, context: sw.RuntimeContext) -> None:
        self._seen = context.get_state(sw.ValueStateDescriptor("seen", int))

    def process_element1(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        yield ctx.get_current_key(), seen

    process_element2 = process_element1


def connected(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[Any]:
    left = numbers(flow, failing).key_by(lambda v: v % 5)
    right = numbers(flow).key_by(lambda v: v % 5)
    return left.connect(right).process(Both())


def stamped(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[int]:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    return numbers(flow, failing).assign_timestamps_and_watermarks(strategy)


def tumbling(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[Any]:
    keyed = stamped(flow, failing).key_by(lambda v: v % 3)
    return keyed.window(TumblingEventTimeWindows(100)).reduce(lambda a, b: a + b)


def sliding(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[Any]:
    keyed = stamped(flow, failing).key_by(lambda v: v % 3)
    return keyed.window(SlidingEventTimeWindows(300, 100)).reduce(lambda a, b: a + b)


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


def asynchronous(flow: sw.Pipeline, failing: FailOnce) -> sw.DataStream[Any]:
    return numbers(flow, failing).async_map(later, capacity=50, timeout="10s").key_by(lambda v: v % 7).count()


class Slow(Lines):
    def write(self, transaction: str, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        for _ in range(30_000):
            pass
        super().write(transaction, values, timestamps)


@pytest.mark.parametrize(
    ("shape", "backend"),
    diagonal([union, connected, tumbling, sliding, asynchronous], ["memory", "filesystem", "rocksdb"]),
)
def test_results_are_the_same(
    shape: Callable[[sw.Pipeline, FailOnce], sw.DataStream[Any]], backend: str, tmp_path: Path
) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    told = []
    for name, at in (("calm", ()), ("broken", (COUNT // 4, COUNT // 2 + 1))):
        marks = tmp_path / name
        marks.mkdir()
        out = Lines(tmp_path / f"{name}-out")
        flow = sw.Pipeline(name, parallelism=2)
        shape(flow, FailOnce(marks, at)).sink(out)
        result = flow.run(checkpoint_interval="10ms", state_backend=backend, restart="fixed-delay:4:1ms")
        assert bool(result.metrics.restarts) == bool(at)
        told.append(out.lines())
    calm, broken = told
    assert calm
    assert Counter(broken) - Counter(calm) == Counter(calm) - Counter(broken) == Counter()


def test_under_back_pressure_checkpoints_get_through(tmp_path: Path) -> None:
    out = Slow(tmp_path / "out")
    flow = sw.Pipeline("slow", parallelism=2)
    failing = FailOnce(tmp_path, (COUNT * 3 // 4,))
    flow.source(GeneratorSource(count=COUNT)).map(failing).rebalance().map(lambda v: v).sink(out)
    result = flow.run(checkpoint_interval="5ms", batch_size=8, restart="fixed-delay:1:1ms")
    assert result.metrics.restarts == 1
    assert out.lines() == sorted(map(repr, range(COUNT)))
