"""Nothing in the job manager or in the workers grows with the number of checkpoints."""

from __future__ import annotations

import ctypes
import gc
import sys
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
MOST_BLOCKS = 1000
"""Small blocks of memory: in half an hour there are 7,200 checkpoints, and what stays of each has one at least."""


class _MallInfo(ctypes.Structure):
    """Figures of malloc, as ``mallinfo2`` of glibc returns them."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def in_use() -> tuple[int, int]:
    """Return the number of small blocks that Python has in use, and the bytes of larger ones, which are malloc's.

    tracemalloc counts them as one, and makes a simulation five times slower. Without glibc's figures the bytes
    are 0.
    """
    gc.collect()
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return sys.getallocatedblocks(), 0
    info.restype = _MallInfo
    found = info()
    return sys.getallocatedblocks(), found.uordblks + found.hblkhd


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
        blocks: small blocks of memory in use, at each tenth of its length.
        allocated: bytes of larger ones.
        completed: checkpoints.
    """

    def __init__(self, minutes: float, **options: Any) -> None:
        self.blocks: list[int] = []
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
                blocks, allocated = in_use()
                self.blocks.append(blocks)
                self.allocated.append(allocated)

        world.trace.add = note  # type: ignore[method-assign]
        result = self._simulation.run()
        assert result.status is JobStatus.FINISHED

    def check(self) -> None:
        """Check that memory has not grown over the second half."""
        assert growth(self.blocks) < MOST_BLOCKS, self.blocks
        assert growth(self.allocated) < STATE_BYTES, self.allocated


def growth(samples: list[int]) -> int:
    """Return by how much they have grown over the second half."""
    assert len(samples) >= SAMPLES
    middle = SAMPLES // 2
    return min(samples[-3:]) - min(samples[middle - 2 : middle + 1])


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
    life.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_way(["in memory", "in files", "messages lost, in files"])
def test_an_hour_of_checkpoints(options: dict[str, Any]) -> None:
    life = Life(60, **options)
    life.run()
    print(f"small blocks: {life.blocks}; bytes of larger ones: {life.allocated}")
    life.check()


@pytest.mark.parametrize("size", [40, 5000])
def test_what_stays_of_each_checkpoint_is_seen(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    take = Holds.process_element

    def process(self: Holds, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        kept.extend(bytes(size) for _ in range(20))
        yield from take(self, value, ctx)

    monkeypatch.setattr(Holds, "process_element", process)
    life = Life(0.5)
    life.run()
    with pytest.raises(AssertionError):
        life.check()
