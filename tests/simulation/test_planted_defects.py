"""Defects put into the runtime on purpose: a simulation must not be blind to any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import CorruptStreamError
from sluiceway.network import frames
from sluiceway.network.credit import GateCredits
from sluiceway.runtime.cluster.resource_manager import ResourceManager
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import Crash, SimulationError, SimulationResult, simulate
from sluiceway.testing.simulation.carrier import SimulatedLink, _Read
from sluiceway.transport.buffers import Buffer

Plant = Callable[[Any, str, Any], None]
EACH = 30


def pages() -> tuple[sw.Pipeline, Sequence[tuple[int, str]]]:
    """Records that are large enough to need several buffers, now and then."""
    flow = sw.Pipeline("pages")
    texts = flow.from_collection([(n % 4, "x" * (n * n * 7)) for n in range(EACH)]).set_parallelism(1)
    return flow, texts.key_by(lambda page: page[0]).map(lambda page: (page[0], page[1].upper())).collect()


EXPECTED = sorted((n % 4, "X" * (n * n * 7)) for n in range(EACH))


def run(seed: int, **arguments: Any) -> SimulationResult:
    flow, results = pages()
    given = {"workers": 2, "parallelism": 2, "batch_size": 2, "most_s": 60, **arguments}
    result = simulate(flow, seed=seed, **given)
    assert sorted(results[-EACH:]) == EXPECTED
    return result


def found(simulation: SimulationRunner, error: type[BaseException], match: str, **arguments: Any) -> None:
    with pytest.raises(error, match=match):
        simulation(lambda seed: run(seed, **arguments), 10)


def test_without_any_there_is_nothing_to_be_found(simulation: SimulationRunner) -> None:
    simulation(run, 10)
    simulation(lambda seed: run(seed, faults=[Crash(60)], restart="fixed-delay:9:1s"), 10)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return monkeypatch.setattr


def test_a_buffer_that_is_lost_on_the_way(plant: Plant, simulation: SimulationRunner) -> None:
    send = SimulatedLink.send

    def lossy(self: SimulatedLink, header: bytes, payload: Buffer | None = None) -> None:
        if header[0] in (frames.DATA, frames.SMALL) and self._node.world.chance.random() < 0.2:
            if payload is not None:
                payload.release()
            return
        send(self, header, payload)

    plant(SimulatedLink, "send", lossy)
    found(simulation, CorruptStreamError, r"frame \d+ came where \d+ was expected")


def test_credit_that_is_not_given_back(plant: Plant, simulation: SimulationRunner) -> None:
    plant(type(GateCredits().channel()), "batch_taken", lambda self, backlog: 0)
    found(simulation, SimulationError, "has not ended within 60 s of virtual time")


def test_a_buffer_that_is_not_given_back(plant: Plant, simulation: SimulationRunner) -> None:
    release = Buffer.release
    count = iter(range(1_000_000))
    plant(Buffer, "release", lambda self: None if next(count) == 3 else release(self))
    found(simulation, SimulationError, r"still hold of it\n.*network buffers")


def test_a_buffer_that_is_given_back_too_early(plant: Plant, simulation: SimulationRunner) -> None:
    send = SimulatedLink.send

    def hasty(self: SimulatedLink, header: bytes, payload: Buffer | None = None) -> None:
        self.copies = False
        send(self, header, payload)
        if payload is not None:
            self._take(_Read(payload))

    plant(SimulatedLink, "send", hasty)
    with pytest.raises((AssertionError, CorruptStreamError)):
        simulation(run, 10)


def test_splits_that_are_not_read_again(plant: Plant, simulation: SimulationRunner) -> None:
    def forgets_splits(self: SourceCoordinator, reader: int) -> None:
        self._readers.discard(reader)
        self.no_more.discard(reader)

    plant(SourceCoordinator, "reader_failed", forgets_splits)
    found(simulation, AssertionError, "assert", faults=[Crash(60)], restart="fixed-delay:9:1s")


def test_a_job_that_workers_are_not_told_to_forget(plant: Plant, simulation: SimulationRunner) -> None:
    send = ResourceManager.send

    def forgetful(self: ResourceManager, worker: str, message: Any) -> None:
        if type(message).__name__ != "JobEnded":
            send(self, worker, message)

    plant(ResourceManager, "send", forgetful)
    found(simulation, SimulationError, "still hold of it\n  worker-1: job 'pages'")


def test_channels_that_do_not_wait_for_one_another_at_a_barrier(simulation: SimulationRunner) -> None:
    """No need to plant it: there is an option for that, and what it costs must show."""

    def trial(seed: int) -> None:
        flow = sw.Pipeline("counts")
        source = flow.from_collection([n % 3 for n in range(90)])
        results = source.key_by(lambda n: n).count().collect()
        arguments = {"workers": 2, "parallelism": 2, "batch_size": 2, "checkpoint_interval": "5ms"}
        simulate(flow, seed=seed, crashes=2, checkpoint_mode="at-least-once", **arguments)
        assert set(results) == {(n, count) for n in range(3) for count in range(1, 31)}

    with pytest.raises(AssertionError, match="Extra items in the left set"):
        simulation(trial, 40)
