"""A job gets another parallelism while it runs: nothing is lost or doubled, and what cannot be is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.api.handle import JobHandle
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import RescaleError
from sluiceway.testing import KeySequence, NumberFiles
from sluiceway.windows import TumblingEventTimeWindows

COUNT = 60_000
KEYS = 12


def numbers(out: Path, count: int | None = COUNT, rate: int | None = None) -> tuple[sw.Pipeline, NumberFiles]:
    """Numbers that compare with their key's last one, written once each."""
    flow = sw.Pipeline("numbers", max_parallelism=16)
    sink = NumberFiles(out)
    counted = flow.source(GeneratorSource(count=count, rate=rate)).uid("numbers").key_by(lambda n: n % KEYS)
    counted.map(KeySequence(KEYS)).name("compare").uid("compared").sink(sink).uid("out")
    return flow, sink


async def more(handle: JobHandle, records: int) -> None:
    """Return when so many more records were read, or when the job has ended."""
    wanted = handle.metrics().records_in + records
    while handle.metrics().records_in < wanted and not handle.status.ended:
        await asyncio.sleep(0.005)


def run(flow: sw.Pipeline, during: Callable[[JobHandle], Awaitable[None]], **options: Any) -> None:
    async def go() -> None:
        async with await flow.start(**options) as handle:
            await during(handle)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("workers", "backend", "interval"),
    [(0, "memory", "30ms"), (2, "rocksdb", "30ms"), pytest.param(2, "memory", "0ms", marks=pytest.mark.slow)],
    ids=["in one process", "on workers with rocksdb", "on workers without checkpoints"],
)
def test_nothing_is_lost_or_doubled(workers: int, backend: str, interval: str, tmp_path: Path) -> None:
    flow, sink = numbers(tmp_path / "out", rate=15_000)

    async def rescales(handle: JobHandle) -> None:
        for parallelism in (3, 2, 4):
            await more(handle, 3_000)
            before = handle.metrics()
            info = await handle.rescale(parallelism)
            assert info.status == "completed"
            assert set(info.after.values()) == {parallelism}
            assert handle.metrics().records_in >= before.records_in, "totals never go back"
        await more(handle, 1_000)
        vertices = handle._job.describe().vertices
        assert [v.parallelism for v in vertices] == [4, 4]
        assert [r.status for r in handle._job.describe().rescales] == ["completed"] * 3
        result = await handle.result()
        assert result.status is JobStatus.FINISHED
        assert result.failures == ()
        assert len({(s.vertex_id, s.subtask) for s in result.metrics.subtasks}) == 8

    run(flow, rescales, parallelism=1, workers=workers, state_backend=backend, checkpoint_interval=interval)
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates, report.out_of_order) == (COUNT, 0, 0, 0), report


class Late(sw.KeyedProcessFunction[int, int, tuple[int, int]]):
    """Emits the number of records of a key when event time has come to the end."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int))

    def process_element(self, value: int, context: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        context.timer_service().register_event_time_timer(10_000_000)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        yield context.get_current_key(), self.count.value()


def test_timers_and_windows_survive(tmp_path: Path) -> None:
    count = 20_000
    flow = sw.Pipeline("windows")
    source = GeneratorSource(count=count, rate=10_000, timestamp=lambda n: n)
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps()
    keyed = flow.source(source, watermark_strategy=strategy).key_by(lambda n: n % 5)
    sums = keyed.window(TumblingEventTimeWindows.of(1000)).sum().collect()
    late = keyed.process(Late()).collect()

    async def rescales(handle: JobHandle) -> None:
        for parallelism in (3, 1, 2):
            await more(handle, 2_500)
            await handle.rescale(parallelism)
        await handle.result()

    run(flow, rescales, parallelism=2, checkpoint_interval="50ms")
    expected = Counter(
        sum(n for n in range(s, s + 1000) if n % 5 == k) for s in range(0, count, 1000) for k in range(5)
    )
    assert Counter(sums) == expected
    assert sorted(late) == [(key, count // 5) for key in range(5)]


def test_single_steps_and_what_is_fixed(tmp_path: Path) -> None:
    flow = sw.Pipeline("steps")
    numbers = flow.source(GeneratorSource(rate=1_000)).set_parallelism(1).uid("numbers")
    counted = numbers.key_by(lambda n: n % KEYS).count().name("counts")
    counted.rebalance().map(lambda v: v).name("copy").uid("copies").collect()

    async def rescales(handle: JobHandle) -> None:
        await more(handle, 100)
        info = await handle.rescale(3)
        assert info.after["numbers"] == 1, "the program has chosen it"
        assert set(info.after.values()) == {1, 3}
        info = await handle.rescale(steps={"copy": 2, "numbers": 2})
        assert (info.after["numbers"], info.after["copies"]) == (2, 2)
        assert sorted(info.after.values()) == [2, 2, 3]
        same = await handle.rescale(steps={"counts": 3})
        assert same.before == same.after == info.after
        assert len(handle._job.describe().rescales) == 2, "that was none"

    run(flow, rescales, parallelism=2, checkpoint_interval="1h")


REFUSED: list[tuple[int | None, dict[str, int], str]] = [
    (17, {}, r"cannot have parallelism 17: it is divided into 16 key groups"),
    (None, {"compares": 2}, "there is no step 'compares' in the job.* Did you mean 'compare'"),
    (None, {"compare": 0}, "parallelism 0 is not possible"),
    (None, {}, "nothing to change"),
]


def test_what_cannot_be_is_refused_and_stops_nothing(tmp_path: Path) -> None:
    flow, _ = numbers(tmp_path / "out", count=None, rate=5_000)

    async def rescales(handle: JobHandle) -> None:
        await more(handle, 100)
        for parallelism, steps, message in REFUSED:
            with pytest.raises(RescaleError, match=message):
                await handle.rescale(parallelism, steps=steps)
        both = await asyncio.gather(handle.rescale(3), handle.rescale(2), return_exceptions=True)
        assert not isinstance(both[0], BaseException)
        assert "being rescaled already" in str(both[1])
        handle.cancel()
        await handle.result()
        with pytest.raises(RescaleError, match="has ended"):
            await handle.rescale(2)

    run(flow, rescales, parallelism=1, checkpoint_interval="50ms")

    async def unable(handle: JobHandle) -> None:
        with pytest.raises(RescaleError, match="only if it can be restarted"):
            await handle.rescale(2)

    run(numbers(tmp_path / "other", count=None, rate=100)[0], unable)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_that_cannot_begin_at_the_new_parallelism_has_the_old_one_again(
    workers: int, tmp_path: Path
) -> None:
    class Unfit(sw.MapFunction[int, int]):
        """Opens at a parallelism of up to two. Here, so that it is pickled by value."""

        def open(self, context: sw.RuntimeContext) -> None:
            if context.number_of_parallel_subtasks > 2:
                raise ValueError("three are too many")

        def map(self, value: int) -> int:
            return value

    flow = sw.Pipeline("unfit", max_parallelism=16)
    sink = NumberFiles(tmp_path / "out")
    counted = flow.source(GeneratorSource(count=COUNT, rate=15_000)).key_by(lambda n: n % KEYS)
    counted.map(KeySequence(KEYS)).map(Unfit()).sink(sink)

    async def rescales(handle: JobHandle) -> None:
        await more(handle, 5_000)
        with pytest.raises(RescaleError, match=r"has its earlier one again: ValueError: three are too many"):
            await handle.rescale(3)
        assert {v.parallelism for v in handle._job.describe().vertices} == {1}
        await more(handle, 5_000)
        assert (await handle.rescale(2)).status == "completed"
        assert [r.status for r in handle._job.describe().rescales] == ["failed", "completed"]
        result = await handle.result()
        assert {str(failure.cause) for failure in result.failures} == {"three are too many"}

    run(flow, rescales, parallelism=1, workers=workers, checkpoint_interval="50ms")
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_cancelled_stopped_or_saved_in_the_middle(tmp_path: Path) -> None:
    """Whatever is asked for at the same time is done, and everybody is answered."""

    async def cancelled(handle: JobHandle) -> None:
        await more(handle, 500)
        asked = asyncio.ensure_future(handle.rescale(3))
        await asyncio.sleep(0)
        handle.cancel()
        answers: Sequence[Any] = await asyncio.gather(asked, handle.result(), return_exceptions=True)
        assert isinstance(answers[0], RescaleError) or answers[0].status == "completed"
        assert answers[1].status is JobStatus.CANCELED

    async def stopped(handle: JobHandle) -> None:
        await more(handle, 500)
        await asyncio.gather(handle.rescale(3), handle.stop(), return_exceptions=True)
        assert (await handle.result()).status is JobStatus.FINISHED

    async def saved(handle: JobHandle) -> None:
        await more(handle, 500)
        info, location = await asyncio.gather(handle.rescale(3), handle.stop(tmp_path / "kept"))
        assert info.status == "completed"
        assert Path(location).is_dir()
        assert (await handle.result()).status is JobStatus.FINISHED

    for index, during in enumerate((cancelled, stopped, saved)):
        flow, sink = numbers(tmp_path / f"{index}", count=None, rate=5_000)
        run(flow, during, parallelism=1, checkpoint_interval="50ms")
        if during is not cancelled:
            report = sink.report()
            assert (report.lost, report.duplicates) == (0, 0), report


def workers() -> list[int]:
    """The worker processes of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"sluiceway.entrypoint.worker" in line and above == os.getpid():
                    found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("KILL_SEEDS", "2"))))
def test_nothing_is_lost_when_workers_are_killed_in_the_middle(seed: int, tmp_path: Path) -> None:
    """In the checkpoint, between the two, or while the tasks come up: wherever chance has it."""
    lots = random.Random(seed)
    flow, sink = numbers(tmp_path / "out", count=2 * COUNT, rate=8_000)
    told: Counter[str] = Counter()

    async def rescales(handle: JobHandle) -> None:
        parallelism = 1
        await more(handle, 500)
        for _ in range(8):
            wanted = lots.choice([n for n in (1, 2, 3, 4) if n != parallelism])
            asked = asyncio.ensure_future(handle.rescale(wanted))
            await asyncio.sleep(lots.choice([0.0, 0.01, 0.05, 0.15]) * lots.random())
            if there := workers():
                with suppress(ProcessLookupError):
                    os.kill(lots.choice(there), signal.SIGKILL)
            [answer] = await asyncio.gather(asked, return_exceptions=True)
            if isinstance(answer, BaseException):
                assert isinstance(answer, RescaleError), answer
                told["refused"] += 1
            else:
                parallelism = wanted
                told["rescaled"] += 1
            await more(handle, 2_000)
            assert {v.parallelism for v in handle._job.describe().vertices} == {parallelism}
        result = await handle.result()
        causes = {type(failure.cause).__name__ for failure in result.failures}
        assert "WorkerLostError" in causes
        assert causes <= {"WorkerLostError", "NoResourceAvailableError"}, causes

    run(
        flow,
        rescales,
        parallelism=1,
        workers=2,
        checkpoint_interval="50ms",
        checkpoints=tmp_path / "kept",
        restart="fixed-delay:100:10ms",
    )
    report = sink.report(2 * COUNT)
    assert (report.received, report.lost, report.duplicates) == (2 * COUNT, 0, 0), (report, told)
