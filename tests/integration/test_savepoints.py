"""Savepoints: taken while a job goes on or ends with it, and what another run makes of them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.checkpoint import SAVEPOINT, load_metadata
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, ConfigurationError, GraphError, StateError
from sluiceway.plugins import default_manager
from sluiceway.testing import FailOnce, InjectedError, KeySequence, NumberFiles

COUNT = 100_000


def numbers(out: Path, rate: int | None = None, count: int = COUNT) -> tuple[sw.Pipeline, NumberFiles]:
    """Numbers that compare with their key's last one, written once each."""
    flow = sw.Pipeline("numbers", max_parallelism=16)
    sink = NumberFiles(out)
    counted = flow.source(GeneratorSource(count=count, rate=rate)).uid("numbers").key_by(lambda n: n % 12)
    counted.map(KeySequence(12)).uid("counted").sink(sink).uid("out")
    return flow, sink


def saved(flow: sw.Pipeline, sink: NumberFiles, place: Path, *, stop: bool, **options: Any) -> str:
    """Run it until something is written, take a savepoint, and end."""

    async def go() -> str:
        async with await flow.start(**options) as handle:
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            if not stop:
                return await handle.savepoint(place)
            location = await handle.stop(savepoint=place)
            assert (await handle.result()).status is JobStatus.FINISHED
            return location

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("workers", "interval"),
    [(0, "0ms"), (0, "30ms"), (2, "30ms")],
    ids=["without checkpoints", "in one process", "on two workers"],
)
def test_a_job_stops_with_a_savepoint_and_another_goes_on(workers: int, interval: str, tmp_path: Path) -> None:
    flow, sink = numbers(tmp_path / "out", rate=2_000)
    location = saved(
        flow, sink, tmp_path / "kept", stop=True, parallelism=2, workers=workers, checkpoint_interval=interval
    )
    report = sink.report(COUNT)
    assert 1_000 <= report.received < COUNT, "it did not end by itself"
    assert report.duplicates == 0
    assert Path(location).parent == tmp_path / "kept"
    again, sink = numbers(tmp_path / "out")
    again.run(from_checkpoint=location, parallelism=3, workers=workers, checkpoint_interval="1h")
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_what_goes_on_may_have_another_backend_parallelism_and_transport(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    rounds: list[dict[str, Any]] = [
        {"parallelism": 2, "state_backend": "rocksdb", "checkpoint_interval": "20ms"},
        {"parallelism": 1, "workers": 1, "state_backend": "filesystem", "checkpoint_interval": "20ms"},
        {"parallelism": 1},
        {"parallelism": 3, "workers": 2, "transport": "zmq", "state_backend": "rocksdb"},
    ]
    for options in rounds:
        flow, sink = numbers(tmp_path / "out", rate=2_000)
        before = place if place.exists() else None
        location = saved(flow, sink, place, stop=True, **options, from_checkpoint=before)
        storage = default_manager().checkpoint_storage(str(place))
        found = load_metadata(storage, Path(location).name)
        assert found.kind == SAVEPOINT
        assert not any(name.startswith("..") for name in found.files()), "it needs nothing outside itself"
        operators = [o for v in found.vertices for s in v.subtasks for o in s.operators]
        assert all(o.keyed.native is None for o in operators if o.keyed is not None), "any backend can read it"
    flow, sink = numbers(tmp_path / "out")
    flow.run(from_checkpoint=place, checkpoint_interval="1h")
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_a_job_goes_on_after_a_savepoint_and_another_begins_with_it(tmp_path: Path) -> None:
    flow, sink = numbers(tmp_path / "first", rate=2_000)
    place = tmp_path / "kept"

    async def go() -> tuple[list[str], int]:
        async with await flow.start(checkpoint_interval="20ms", checkpoints=tmp_path / "checkpoints") as handle:
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            some = await asyncio.gather(handle.savepoint(place), handle.savepoint(place), handle.savepoint())
            then = handle.metrics().records_out
            while handle.metrics().records_out < then + 1_000:
                await asyncio.sleep(0.005)
            return some, then

    some, _ = asyncio.run(go())
    assert len(set(some)) == 3
    assert [Path(location).parent for location in some] == [place, place, tmp_path / "checkpoints"]
    for location in some:
        out = tmp_path / Path(location).name
        again, sink = numbers(out)
        again.run(from_checkpoint=location, checkpoint_interval="1h")
        report = sink.report(COUNT)
        assert report.duplicates == 0
        assert report.received < COUNT, "it did not begin at the beginning"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_on_demand_is_what_the_job_resumes_from(workers: int, tmp_path: Path) -> None:
    flow, sink = numbers(tmp_path / "out", rate=2_000)
    place = tmp_path / "kept"

    async def go() -> int:
        options: dict[str, Any] = {"workers": workers, "checkpoint_interval": "1h", "checkpoints": place}
        async with await flow.start(**options) as handle:
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            return await handle.checkpoint()

    assert asyncio.run(go()) >= 1
    assert len(list(place.rglob("metadata.json"))) == 1
    again, sink = numbers(tmp_path / "out")
    result = again.run(checkpoints=place, resume=True, checkpoint_interval="1h", workers=workers)
    assert result.metrics.records_in < COUNT, "it did not begin at the beginning"
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_a_job_without_checkpoints_takes_none_on_demand(tmp_path: Path) -> None:
    flow, _ = numbers(tmp_path / "out", rate=2_000)

    async def go() -> None:
        async with await flow.start() as handle:
            with pytest.raises(CheckpointError, match="begin it with --checkpoint-interval, or take a savepoint"):
                await handle.checkpoint()
        with pytest.raises(CheckpointError, match="the job has ended"):
            await handle.checkpoint()

    asyncio.run(go())


def test_a_failure_goes_back_to_the_last_checkpoint_and_not_to_a_savepoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flow = sw.Pipeline("fails")
    sink = NumberFiles(tmp_path / "out")
    counted = flow.source(GeneratorSource(count=COUNT, rate=20_000)).key_by(lambda n: n % 12).map(KeySequence(12))

    def fail_once_saved(n: int) -> int:
        try:
            saved.unlink()
        except FileNotFoundError:
            return n
        raise InjectedError("there is a savepoint")

    counted.map(fail_once_saved).sink(sink)
    place = tmp_path / "kept"

    async def go() -> None:
        async with await flow.start(checkpoint_interval="1h", restart="fixed-delay:1:0ms") as handle:
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            location = Path(await handle.savepoint(place))
            shutil.rmtree(location)
            saved.touch()
            while handle.metrics().restarts < 1 or handle.metrics().records_out < 18_000:
                await asyncio.sleep(0.005)
            await handle.stop()

    asyncio.run(go())
    report = sink.report(COUNT)
    assert report.duplicates == 0
    assert report.received > 8_000
    assert report.lost == COUNT - report.received, "what came, came in one piece"


def test_a_savepoint_that_cannot_be_taken_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    count = 10_000
    flow, sink = numbers(tmp_path / "out", rate=2_500, count=count)

    async def go() -> None:
        async with await flow.start() as handle:
            with pytest.raises(ConfigurationError, match="say in which directory the savepoint is to be"):
                await handle.savepoint()
            while handle.metrics().records_out < 1_000:
                await asyncio.sleep(0.005)
            for stop in (handle.savepoint, handle.stop):
                with pytest.raises(CheckpointError, match="file"):
                    await stop(tmp_path / "file" / "below")
            await handle.result()
            with pytest.raises(CheckpointError, match="the job has ended"):
                await handle.savepoint(tmp_path / "late")

    asyncio.run(go())
    report = sink.report(count)
    assert (report.received, report.lost, report.duplicates) == (count, 0, 0), report
    assert not (tmp_path / "late").exists()


def test_a_job_with_a_loop_takes_no_savepoint(tmp_path: Path) -> None:
    flow = sw.Pipeline("loop")
    loop = flow.source(GeneratorSource(count=COUNT, rate=1_000)).iterate()
    down = loop.map(lambda v: v - 1)
    loop.close_with(down.filter(lambda v: False))
    down.collect()

    async def go() -> None:
        async with await flow.start() as handle:
            with pytest.raises(GraphError, match="savepoints of a job with a feedback loop are not supported"):
                await handle.savepoint(tmp_path)

    asyncio.run(go())


def test_state_without_a_step_is_left_behind_only_when_that_is_allowed(tmp_path: Path) -> None:
    def flow(uid: str, rate: int | None = None) -> tuple[sw.Pipeline, list[Any]]:
        flow = sw.Pipeline("changes")
        counted = flow.source(GeneratorSource(count=1000, rate=rate)).uid("numbers").key_by(lambda n: 0)
        return flow, counted.count().uid(uid).collect()

    first, _ = flow("counted", rate=10)  # it would take minutes

    async def go() -> str:
        async with await first.start() as handle:
            while not handle.metrics().records_out:
                await asyncio.sleep(0.005)
            return await handle.stop(savepoint=tmp_path)

    location = asyncio.run(go())
    for workers in (0, 1):
        other, out = flow("other")
        with pytest.raises(StateError, match=r"state of 'counted', which no step .*with allow-dropped-state"):
            other.run(from_checkpoint=location, workers=workers)
        other, out = flow("other")
        other.run(from_checkpoint=location, allow_dropped_state=True, workers=workers)
        assert [n for _, n in out] == list(range(1, len(out) + 1)), "the count has begun anew"
        assert 0 < len(out) < 1000, "the source has gone on"


@pytest.mark.parametrize("checkpoints", [True, False])
def test_state_of_tasks_that_have_finished_is_in_the_savepoint(checkpoints: bool, tmp_path: Path) -> None:
    def flow(values: list[int], rate: int | None) -> tuple[sw.Pipeline, list[Any], list[Any]]:
        flow = sw.Pipeline("one ends", parallelism=2)
        short = flow.from_collection(values).uid("short").key_by(lambda n: n % 2).count().uid("few").collect()
        long = flow.source(GeneratorSource(count=20_000, rate=rate)).uid("long")
        return flow, short, long.key_by(lambda n: n % 7).count().uid("many").collect()

    first, few, many = flow([1, 2, 3], 100)  # it would take minutes
    kept = tmp_path / "kept" if checkpoints else None

    async def go() -> str:
        options = {"state_backend": "rocksdb", "checkpoint_interval": "20ms", "checkpoints": kept}
        async with await first.start(**options) as handle:
            while sum(s.state == "finished" for s in handle.metrics().subtasks) < 4:
                await asyncio.sleep(0.005)
            return await handle.stop(savepoint=tmp_path)

    location = asyncio.run(go())
    before = Counter(many)
    assert sorted(few) == [(0, 1), (1, 1), (1, 2)]
    storage = default_manager().checkpoint_storage(str(tmp_path))
    found = load_metadata(storage, Path(location).name)
    finished = [s for v in found.vertices for s in v.subtasks if s.finished]
    assert len(finished) == 4
    assert any(o.keyed is not None and o.keyed.groups for s in finished for o in s.operators)
    second, few, many = flow([1, 2, 3], None)
    second.run(from_checkpoint=location)
    assert few == [], "it had come to its end"
    owed = {(key, n) for key in range(7) for n in range(1, len(range(key, 20_000, 7)) + 1)}
    assert before + Counter(many) == Counter(owed), "nothing was written after the savepoint"


def test_a_failure_after_the_savepoint_says_that_it_is_complete(tmp_path: Path) -> None:
    flow = sw.Pipeline("fails late")
    numbers = flow.source(GeneratorSource(count=COUNT, rate=20_000)).map(FailOnce(tmp_path, at_close=True))
    out = numbers.collect()

    async def go() -> None:
        async with await flow.start(restart="fixed-delay:3:0ms") as handle:
            while not out:
                await asyncio.sleep(0.005)
            await handle.stop(savepoint=tmp_path / "kept")

    with pytest.raises(InjectedError) as caught:
        asyncio.run(go())
    (location,) = (tmp_path / "kept").iterdir()
    assert f"the job was about to end, with the savepoint {location}, which is complete" in caught.value.__notes__
    assert (location / "metadata.json").exists()


class _FailsWhenReleased(sw.MapFunction[int, int]):
    """Waits in the call of the first record until it is released, and fails."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def map(self, value: int) -> int:
        self.entered.set()
        assert self.released.wait(PATIENT_S)
        raise InjectedError("released")

    def __deepcopy__(self, memo: Any) -> _FailsWhenReleased:
        return self


def test_stopping_a_job_that_fails_raises_what_made_it_fail(tmp_path: Path) -> None:
    async def stopped(function: _FailsWhenReleased) -> BaseException:
        flow = sw.Pipeline("fails")
        flow.source(GeneratorSource(count=10)).map(function).collect()
        handle = await flow.start(restart="none")
        await asyncio.to_thread(function.entered.wait)
        stopping = asyncio.ensure_future(handle.stop(savepoint=tmp_path / "kept"))
        await asyncio.sleep(0)
        function.released.set()
        with pytest.raises(InjectedError) as caught:
            await stopping
        # Once it has ended, too.
        with pytest.raises(InjectedError):
            await handle.stop(savepoint=tmp_path / "kept")
        return caught.value

    assert isinstance(asyncio.run(stopped(_FailsWhenReleased())).__context__, CheckpointError)
