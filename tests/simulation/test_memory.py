"""Nothing in the job manager or in the workers grows with the number of checkpoints."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink, GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.testing.simulation import Simulation
from sluiceway.testing.simulation.trace import Event

INTERVAL_MS = 250
STATE_BYTES = 100_000
KEYS = 10
SAMPLES = 10


class Holds(sw.KeyedProcessFunction[int, int, int]):
    """Keeps a large value for each key."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.value = context.get_state(sw.ValueStateDescriptor("value", bytes))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        self.value.update(value.to_bytes(8, "big") * (STATE_BYTES // KEYS // 8))
        yield value


class Life:
    """A job on two simulated workers, in virtual time.

    Args:
        minutes: its length.
        options: those of :class:`Simulation`.

    Attributes:
        allocated: bytes, at each tenth of its length.
        completed: checkpoints.
    """

    def __init__(self, minutes: float, **options: Any) -> None:
        self.allocated: list[int] = []
        self.completed: set[str] = set()
        self._ms = round(minutes * 60_000)
        flow = sw.Pipeline("life")
        source = GeneratorSource(count=self._ms // 100, rate=10.0)
        numbers = flow.source(source).set_parallelism(1).uid("numbers")
        numbers.key_by(lambda n: n % KEYS).process(Holds()).uid("holds").sink(DiscardSink()).uid("out")
        options = {"workers": 2, "parallelism": 2, "checkpoint_interval": f"{INTERVAL_MS}ms", **options}
        self._simulation = Simulation(flow, seed=1, most_steps=1 << 62, most_s=1e9, **options)

    def run(self) -> None:
        world = self._simulation._world
        add = world.trace.add

        def note(event: Event) -> None:
            if "CheckpointCompleted" in event.what:
                self.completed.add(event.what)
            # The trace is the simulation's own, and has no bound.
            del world.trace._events[:-100]
            add(event)
            if world.clock.us >= (len(self.allocated) + 1) * self._ms * 1000 // (SAMPLES + 1):
                gc.collect()
                self.allocated.append(tracemalloc.get_traced_memory()[0])

        world.trace.add = note  # type: ignore[method-assign]
        tracemalloc.start()
        try:
            result = self._simulation.run()
        finally:
            tracemalloc.stop()
        assert result.status is JobStatus.FINISHED

    @property
    def growth(self) -> int:
        """Bytes, over the second half."""
        assert len(self.allocated) >= SAMPLES
        middle = SAMPLES // 2
        return min(self.allocated[-3:]) - min(self.allocated[middle - 2 : middle + 1])


@pytest.fixture
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    place: dict[str, Any] = {"checkpoints": str(tmp_path / "checkpoints")}
    never = {"checkpoint_tolerated_failures": 1 << 30, "restart": "fixed-delay:1000000:100ms"}
    return {
        "in memory": {},
        "in files": place,
        "unaligned": {"checkpoint_unaligned": True},
        "messages lost": {"unreliable": 0.1, "checkpoint_timeout": "1s", **never},
        "messages lost, in files": {"unreliable": 0.1, "checkpoint_timeout": "1s", **place, **never},
    }[request.param]


each_way = partial(pytest.mark.parametrize, "options", indirect=True)


slow = partial(pytest.param, marks=pytest.mark.slow)


@each_way([slow("in memory"), "in files", slow("unaligned"), slow("messages lost")])
def test_half_a_minute_of_checkpoints(options: dict[str, Any]) -> None:
    life = Life(0.5, **options)
    life.run()
    assert life.growth < STATE_BYTES, life.allocated


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_way(["in memory", "in files", "messages lost, in files"])
def test_an_hour_of_checkpoints(options: dict[str, Any]) -> None:
    life = Life(60, **options)
    life.run()
    print(f"grew by {life.growth} bytes in the second half hour: {life.allocated}")
    assert life.growth < STATE_BYTES, life.allocated
