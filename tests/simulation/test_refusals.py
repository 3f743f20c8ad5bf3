"""What cannot be simulated is refused, with what to do instead."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import (
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.testing import EOF, TestSource
from sluiceway.testing.simulation import (
    CancelJob,
    Crash,
    Hang,
    LoseJobManager,
    Simulation,
    SimulationError,
    TakeSavepoint,
    simulate,
)


async def answer(n: int) -> int:
    return n


def test_coroutines() -> None:
    flow = sw.Pipeline("async")
    flow.from_collection([1, 2]).async_map(answer, timeout=None).collect()
    with pytest.raises(SimulationError, match=r"step 'async_map.*' calls coroutines.*put a map\(\) in its place"):
        Simulation(flow)


@dataclass(frozen=True)
class _Split:
    split_id: str = "split"


class _Outside(Source[int]):
    """Waits for something that no simulation knows of."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, [_Split()])

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _OutsideReader(context, self.kind)


class _OutsideReader(SimpleReader[int]):
    def __init__(self, context: ReaderContext, kind: str) -> None:
        super().__init__(context)
        self._kind = kind
        self._sockets: list[socket.socket] = []

    def open_split(self, split: Any) -> None:
        if self._kind == "thread":
            thread = threading.Thread(target=self.context.wake)
            thread.start()
            thread.join()
        else:
            self._sockets += socket.socketpair()

    def read(self, limit: int) -> Poll[int]:
        return Wait(fileno=self._sockets[0].fileno()) if self._sockets else Wait()

    def position(self) -> Any:
        return _Split()

    def close_split(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def outside(request: pytest.FixtureRequest) -> sw.Pipeline:
    flow = sw.Pipeline("outside")
    flow.source(_Outside(request.param)).collect()
    return flow


@pytest.mark.parametrize("outside", ["thread"], indirect=True)
def test_threads(outside: sw.Pipeline) -> None:
    with pytest.raises(SimulationError, match=r"by a thread of its own \('Thread-.*cannot be simulated"):
        simulate(outside, seed=1)


@pytest.mark.parametrize("outside", ["file"], indirect=True)
def test_files_and_sockets(outside: sw.Pipeline) -> None:
    with pytest.raises(SimulationError, match=r"waits for file descriptor \d+: what comes from outside cannot"):
        simulate(outside, seed=1)


def test_what_works_in_one_process_alone_is_refused_as_with_workers() -> None:
    flow = sw.Pipeline("local")
    flow.source(TestSource([1, EOF])).collect()
    with pytest.raises(sw.SerializationError, match=r"TestSource works inside one process") as caught:
        Simulation(flow)
    (note,) = caught.value.__notes__
    assert note.startswith("a simulation has workers in any case: let it read from_collection()")


def test_arguments_that_cannot_be() -> None:
    flow = sw.Pipeline("none")
    flow.from_collection([1]).collect()
    with pytest.raises(sw.ConfigurationError, match="workers is 0: a simulation needs at least 1"):
        Simulation(flow, workers=0)
    with pytest.raises(sw.ConfigurationError, match=r"delay_ms is \(5, 1\): give the shortest and the longest"):
        Simulation(flow, delay_ms=(5, 1))
    with pytest.raises(sw.ConfigurationError, match=r"unreliable is 1.5: a chance is from 0 to 1"):
        Simulation(flow, unreliable=1.5)
    with pytest.raises(
        sw.ConfigurationError, match=r"waited for until checkpoint_timeout, 600 s, but .* most_s, 600 s"
    ):
        Simulation(flow, unreliable=0.1, checkpoint_interval="10ms")
    Simulation(flow, unreliable=0.1, checkpoint_interval="10ms", checkpoint_timeout="1s")
    with pytest.raises(sw.UnknownNameError, match="there is no option 'crash'"):
        Simulation(flow, crash=1)
    with pytest.raises(sw.ConfigurationError, match="crashes is -1 and hangs is 0: neither can be below 0"):
        Simulation(flow, crashes=-1)
    with pytest.raises(
        TypeError, match="a simulation runs a Pipeline, or that which a function returns, not None"
    ):
        Simulation(lambda: None)  # type: ignore[arg-type,return-value]


def test_faults_that_cannot_be() -> None:
    flow = sw.Pipeline("none")
    flow.from_collection([1]).collect()
    for fault in (Crash(5, "worker-4"), Hang(5, 100, "worker1")):
        with pytest.raises(sw.ConfigurationError, match=r"never a worker of that name\. .*worker-2, worker-3$"):
            Simulation(flow, faults=[fault])
    # The worker that replaces one that has crashed has the next number.
    Simulation(flow, faults=[Crash(5, "worker-3")])
    with pytest.raises(TypeError, match=r"faults are objects such as Crash\(step=10\), not 'crash'"):
        Simulation(flow, faults=["crash"])  # type: ignore[list-item]
    for make in (
        Crash,
        LoseJobManager,
        CancelJob,
        lambda step: TakeSavepoint(step, "x"),
        lambda step: Hang(step, 1),
    ):
        with pytest.raises(sw.ConfigurationError, match=r"step=0.*: a step is a whole number, counted from 1"):
            make(0)
    with pytest.raises(sw.ConfigurationError, match="a worker cannot hang for a time below 0"):
        Hang(1, -1)


def test_a_simulation_runs_once() -> None:
    flow = sw.Pipeline("once")
    flow.from_collection([1]).collect()
    made = Simulation(flow, seed=1)
    made.run()
    with pytest.raises(RuntimeError, match="a simulation runs once"):
        made.run()


def test_a_job_that_nothing_wakes_comes_to_an_end() -> None:
    class _Asleep(_OutsideReader):
        def open_split(self, split: Any) -> None: ...

    class _AsleepSource(_Outside):
        def create_reader(self, context: ReaderContext) -> Reader[int]:
            return _Asleep(context, "")

    flow = sw.Pipeline("asleep")
    flow.source(_AsleepSource("")).collect()
    with pytest.raises(SimulationError, match="has not ended within 60 s of virtual time: nothing wakes it"):
        simulate(flow, seed=1, most_s=60)
