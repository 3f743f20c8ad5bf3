"""A job whose storage does not answer waits for it, can be cancelled, and holds up no other job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import RescaleError
from sluiceway.runtime.jobmanager.checkpoint_store import StorageCheckpointStore
from sluiceway.runtime.taskmanager.snapshot_writer import StorageWriter
from sluiceway.state import KeyedSnapshot
from sluiceway.testing import InjectedError, KeySequence, NumberFiles

KEYS = 12


class SlowReads:
    """Reads of checkpoints, which wait from :meth:`hold` on until they are let go."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self.read = read
        self.begun = Event()
        self.let_go = Event()
        self.let_go.set()

    def hold(self) -> None:
        self.let_go.clear()

    def __get__(self, store: object, owner: type) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            self.begun.set()
            assert self.let_go.wait(PATIENT_S)
            return self.read(store, *arguments)

        return read


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowReads]:
    slow = SlowReads(StorageCheckpointStore._read)
    monkeypatch.setattr(StorageCheckpointStore, "_read", slow)
    yield slow
    slow.let_go.set()


def flow_of(out: Path, fails: Event) -> tuple[sw.Pipeline, NumberFiles]:
    """Numbers without end, so that none of this depends on how fast the machine is."""

    def once(number: int) -> int:
        if fails.is_set():
            fails.clear()
            raise InjectedError(f"at {number}")
        return number

    flow = sw.Pipeline("numbers")
    sink = NumberFiles(out)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(rate=10_000)).uid("numbers")
    numbers.map(once).key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink).uid("out")
    return flow, sink


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not reached():
            await asyncio.sleep(0.005)  # polls


async def ends(job: sw.JobHandle, sink: NumberFiles) -> sw.JobResult:
    """Stop a job that goes on, once it has written more, and check all that it has written."""
    before = job.metrics().checkpoints.completed
    await until(lambda: job.metrics().checkpoints.completed > before + 1)
    await job.stop()
    report = sink.report()
    assert report.received > 0
    assert (report.lost, report.duplicates) == (0, 0), report
    return await job.result()


OPTIONS: dict[str, Any] = {"checkpoint_interval": "20ms", "restart": "fixed-delay:3:1ms"}


class SlowWrites:
    """Writes of snapshots, of which the first waits until it is let go."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self.write = write
        self.checkpoints: list[int] = []
        self.let_go = Event()

    def __get__(self, writer: object, owner: type) -> Callable[..., Any]:
        def write(deployment: object, checkpoint_id: int, snapshot: object) -> Any:
            self.checkpoints.append(checkpoint_id)
            assert self.let_go.wait(PATIENT_S)
            return self.write(writer, deployment, checkpoint_id, snapshot)

        return write


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowWrites]:
    slow = SlowWrites(StorageWriter.write)
    monkeypatch.setattr(StorageWriter, "write", slow)
    yield slow
    slow.let_go.set()


def test_snapshots_of_checkpoints_that_were_given_up_are_not_written(
    writes: SlowWrites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, sink = flow_of(tmp_path / "out", Event())
    released: list[KeyedSnapshot] = []
    monkeypatch.setattr(KeyedSnapshot, "release", lambda snapshot: released.append(snapshot))

    async def run() -> sw.JobResult:
        options = {**OPTIONS, "checkpoint_timeout": "100ms", "checkpoint_tolerated_failures": 10**6}
        async with await flow.start(checkpoints=tmp_path / "kept", **options) as job:
            try:
                await until(lambda: job.metrics().checkpoints.failed > 4)
                # The tasks may not have been notified of the last one.
                over = set(range(1, job.metrics().checkpoints.failed)) - set(writes.checkpoints)
                assert len(released) >= len(over) > 2, "while the storage does not answer"
            finally:
                writes.let_go.set()
            result = await ends(job, sink)
        assert over.isdisjoint(writes.checkpoints)
        return result

    assert asyncio.run(run()).status is JobStatus.FINISHED


def test_a_restart_waits_for_its_checkpoint(reads: SlowReads, tmp_path: Path) -> None:
    fails = Event()
    flow, sink = flow_of(tmp_path / "out", fails)

    async def run() -> sw.JobResult:
        async with await flow.start(checkpoints=tmp_path / "kept", **OPTIONS) as job:
            await until(lambda: job.metrics().checkpoints.completed > 1)
            reads.hold()
            fails.set()
            await until(reads.begun.is_set)
            assert job.status is JobStatus.RESTARTING
            assert job.metrics().restarts == 1
            with pytest.raises(RescaleError, match="is being restarted after a failure"):
                await job.rescale(2)
            reads.let_go.set()
            return await ends(job, sink)

    result = asyncio.run(run())
    assert (result.status, result.metrics.restarts) == (JobStatus.FINISHED, 1)


def test_a_rescale_waits_for_its_checkpoint(reads: SlowReads, tmp_path: Path) -> None:
    flow, sink = flow_of(tmp_path / "out", Event())

    async def run() -> sw.JobResult:
        async with await flow.start(checkpoints=tmp_path / "kept", **OPTIONS) as job:
            await until(lambda: job.metrics().checkpoints.completed > 1)
            reads.hold()
            rescaled = asyncio.ensure_future(job.rescale(2))
            await until(reads.begun.is_set)
            assert job.status is JobStatus.RUNNING
            assert not rescaled.done()
            reads.let_go.set()
            assert set((await rescaled).after.values()) == {2}
            return await ends(job, sink)

    result = asyncio.run(run())
    assert (result.status, result.metrics.restarts) == (JobStatus.FINISHED, 0)


@pytest.mark.parametrize("rescales", [False, True])
def test_a_job_is_cancelled_while_its_checkpoint_is_read(rescales: bool, reads: SlowReads, tmp_path: Path) -> None:
    fails = Event()
    flow, _ = flow_of(tmp_path / "out", fails)

    async def run() -> sw.JobResult:
        async with await flow.start(checkpoints=tmp_path / "kept", **OPTIONS) as job:
            await until(lambda: job.metrics().checkpoints.completed > 1)
            reads.hold()
            if rescales:
                asking = asyncio.ensure_future(job.rescale(2))
            else:
                fails.set()
            await until(reads.begun.is_set)
            job.cancel()
            await until(lambda: job.status is JobStatus.CANCELED)
            reads.let_go.set()
            if rescales:
                with pytest.raises(RescaleError, match="the job is cancel"):
                    await asking
            return await job.result()

    assert asyncio.run(run()).status is JobStatus.CANCELED
