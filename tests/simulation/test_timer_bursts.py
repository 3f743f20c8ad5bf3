"""Checkpoints in the middle of a burst of timers, and crashes after them: each timer fires once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from effort import tries

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.operators import keyed_timers as timed
from sluiceway.operators.windows import sliding, tumbling
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import simulate
from sluiceway.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

EACH = 40
OPTIONS: dict[str, Any] = {"checkpoint_interval": "10ms", "restart": "fixed-delay:50:200ms", "batch_size": 5}
BARRIERS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"checkpoint_unaligned": True},
    "timeout": {"checkpoint_unaligned": True, "checkpoint_aligned_timeout": "3ms"},
}


WITHIN: list[int] = []
"""For each snapshot that was taken in the middle of a burst, how many timers of the subtask had fired."""


class Once(sw.KeyedProcessFunction[int, tuple[int, int], tuple[int, int]], sw.CheckpointedFunction):
    """Sets timers, and wants each to fire once, in order."""

    def initialize_state(self, context: Any) -> None:
        self.fired = 0

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        if 0 < self.fired < EACH:
            WITHIN.append(self.fired)

    def open(self, context: sw.RuntimeContext) -> None:
        self.last = context.get_state(sw.ValueStateDescriptor("last", int, default=-1))

    def process_element(self, value: tuple[int, int], ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.fired += 1
        last = self.last.value()
        assert last < timestamp, f"{timestamp} fires after {last}"
        self.last.update(timestamp)
        yield ctx.get_current_key(), timestamp


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (timed, tumbling, sliding):
        monkeypatch.setattr(module, "BURST", 1)


def records(flow: sw.Pipeline) -> sw.KeyedStream[int, tuple[int, int]]:
    """All of them, and no watermark before the end."""
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(10_000).with_timestamp_assigner(lambda r: r[1])
    events = [(key, number) for number in range(EACH) for key in range(3)]
    return flow.from_collection(events, watermark_strategy=strategy).key_by(lambda r: r[0])


@pytest.mark.parametrize("barriers", BARRIERS)
def test_crashes_in_a_burst(barriers: str, simulation: SimulationRunner) -> None:
    restarts = 0
    WITHIN.clear()

    def trial(seed: int) -> None:
        nonlocal restarts
        flow = sw.Pipeline("burst")
        results = records(flow).process(Once()).collect()
        result = simulate(flow, seed=seed, workers=2, parallelism=2, crashes=2, **OPTIONS, **BARRIERS[barriers])
        assert result.status is JobStatus.FINISHED, result.failure
        assert set(results) == {(key, number) for key in range(3) for number in range(EACH)}
        restarts += result.restarts

    simulation(trial, tries(4, 10))
    assert WITHIN
    assert restarts


def summed(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0], left[1] + right[1]


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda keyed: keyed.window(TumblingEventTimeWindows.of(4)),
    "sliding": lambda keyed: keyed.window(SlidingEventTimeWindows.of(8, 4)),
    "with lateness": lambda keyed: keyed.window(TumblingEventTimeWindows.of(4)).allowed_lateness(2),
}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("barriers", BARRIERS)
def test_crashes_while_windows_are_evaluated(barriers: str, windows: str, simulation: SimulationRunner) -> None:
    def trial(seed: int) -> None:
        flow, calm = sw.Pipeline("burst"), sw.Pipeline("calm")
        results = WINDOWS[windows](records(flow)).reduce(summed).collect()
        wanted = WINDOWS[windows](records(calm)).reduce(summed).collect()
        calm.run()
        simulate(flow, seed=seed, workers=2, parallelism=2, crashes=2, **OPTIONS, **BARRIERS[barriers])
        assert Counter(set(results)) == Counter(wanted)

    simulation(trial, tries(2, 4))
