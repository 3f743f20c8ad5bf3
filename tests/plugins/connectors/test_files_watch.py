"""Files that are found while the job runs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.connector import Boundedness, EnumeratorContext
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, ConnectorError, RejectedRecordError
from sluiceway.runtime.microbatch.driven_enumerator import DrivenEnumerator
from sluiceway_files import FilesSink, FilesSource
from sluiceway_files._watching import Discovered, WatchingEnumerator

DAY_MS = 24 * 60 * 60 * 1000


def put(path: Path, text: str) -> None:
    """Whole, as writers should."""
    hidden = path.with_name(f".{path.name}.part")
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.write_text(text)
    hidden.rename(path)


class Context(EnumeratorContext):
    """Runs an enumerator by hand, under a clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._clock = VirtualClock(now_ms)
        self.assigned: list[tuple[int, str]] = []
        self.woken = threading.Semaphore(0)

    @property
    def parallelism(self) -> int:
        return 2

    @property
    def clock(self) -> VirtualClock:
        return self._clock

    def assign(self, reader: int, splits: Any) -> None:
        self.assigned += [(reader, Path(split.path).name) for split in splits]

    def no_more_splits(self, reader: int) -> None:
        pytest.fail("there may always be more")

    def wake(self, after_s: float = 0.0) -> None:
        if not after_s:
            self.woken.release()


Make = Callable[..., tuple[WatchingEnumerator, Context]]


@pytest.fixture
def enumerator(tmp_path: Path) -> Iterator[Make]:
    made: list[Any] = []

    def make(restored: Any = None, path: Any = tmp_path, now_ms: int = 1_700_000_000_000) -> Any:
        context = Context(now_ms)
        made.append(FilesSource.text(path, watch="1s").create_enumerator(context, restored))
        made[-1].start()
        return made[-1], context

    yield make
    for each in made:
        each.close()


def look(enumerator: WatchingEnumerator, context: Context, after_ms: int = 1000) -> list[tuple[int, str]]:
    """Let time pass, and the look be taken; what is handed out then."""
    before = len(context.assigned)
    context.clock.advance(after_ms)
    enumerator.run()
    assert context.woken.acquire(timeout=PATIENT_S)
    enumerator.run()
    return context.assigned[before:]


def age(path: Path, context: Context, ms: int) -> None:
    at = context.clock.now_ms() - ms
    os.utime(path, ns=(at * 1_000_000, at * 1_000_000))


def test_what_is_there_is_handed_out_and_then_what_comes(tmp_path: Path, enumerator: Make) -> None:
    for name in ("b.txt", "a.txt", ".hidden.txt", "_temporary"):
        (tmp_path / name).write_text(name)
        age(tmp_path / name, Context(), 5000)
    watching, context = enumerator()
    for reader in (0, 1, 0):
        watching.handle_split_request(reader)
    assert context.assigned == [(0, "a.txt"), (1, "b.txt")]
    assert look(watching, context) == []
    put(tmp_path / "c.txt", "c")
    age(tmp_path / "c.txt", context, 5000)
    assert look(watching, context) == [(0, "c.txt")]
    (tmp_path / "later").mkdir()
    put(tmp_path / "later" / "d.txt", "d")
    age(tmp_path / "later" / "d.txt", context, 5000)
    watching.handle_split_request(1)
    watching.handle_split_request(0)
    assert look(watching, context) == [(1, "d.txt")], "whoever has asked first"


def test_a_relative_path_stays_what_it_was_when_a_function_changes_the_directory(
    tmp_path: Path, enumerator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    watching, context = enumerator(path="in")
    watching.handle_split_request(0)
    os.chdir(tmp_path / "elsewhere")
    put(tmp_path / "in" / "a.txt", "a")
    age(tmp_path / "in" / "a.txt", context, 5000)
    assert look(watching, context) == [(0, "a.txt")]


def test_a_file_that_grows_is_taken_when_it_has_stayed_the_same(tmp_path: Path, enumerator: Make) -> None:
    watching, context = enumerator()
    watching.handle_split_request(0)
    file = tmp_path / "grows.txt"
    for size in (1, 2, 3):
        file.write_text("x\n" * size)
        age(file, context, -1500)  # as if written after the next look began
        assert look(watching, context) == []
    assert look(watching, context) == [(0, "grows.txt")]


def test_a_file_that_is_changed_after_it_was_taken_is_warned_of_once(
    tmp_path: Path, enumerator: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("a")
    age(tmp_path / "a.txt", Context(), 5000)
    watching, context = enumerator()
    watching.handle_split_request(0)
    watching.handle_split_request(0)
    (tmp_path / "a.txt").write_text("aa")
    with caplog.at_level(logging.WARNING):
        assert [look(watching, context) for _ in range(3)] == [[], [], []]
    (warned,) = caplog.messages
    assert f"{tmp_path}/a.txt was changed after it was taken: files are read once" in warned


def test_what_was_taken_is_known_after_a_restore_and_forgotten_a_day_after_it_is_gone(
    tmp_path: Path, enumerator: Make
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(name)
        age(tmp_path / name, Context(), 5000)
    first, context = enumerator()
    first.handle_split_request(0)
    state = first.snapshot()
    assert [Path(split.path).name for split in state.pending] == ["b.txt", "c.txt"]
    assert len(state.known) == 3

    second, context = enumerator(state)
    for reader in (0, 0, 0):
        second.handle_split_request(reader)
    assert [name for _, name in context.assigned] == ["b.txt", "c.txt"]
    (tmp_path / "c.txt").rename(tmp_path / ".away")
    (tmp_path / "a.txt").unlink()
    assert look(second, context) == []
    (tmp_path / ".away").rename(tmp_path / "c.txt")
    assert look(second, context) == [], "it is the same file that has come back"
    put(tmp_path / "a.txt", "another one")
    age(tmp_path / "a.txt", context, 5000)
    assert look(second, context) == [(0, "a.txt")], "a new file under the name of one that was gone"
    (tmp_path / "b.txt").unlink()
    look(second, context)
    assert len(second.snapshot().known) == 3
    look(second, context, DAY_MS - 1000)
    assert len(second.snapshot().known) == 3
    look(second, context)
    assert [Path(name).name for name in second.snapshot().known] == ["a.txt", "c.txt"]


def test_splits_of_a_reader_that_fails_go_to_whoever_waits(tmp_path: Path, enumerator: Make) -> None:
    (tmp_path / "a.txt").write_text("a")
    age(tmp_path / "a.txt", Context(), 5000)
    watching, context = enumerator()
    watching.handle_split_request(0)
    watching.handle_split_request(1)
    (split,) = FilesSource.text(tmp_path)._plan()
    watching.add_splits_back([replace(split, offset=0, skip=1)], 0)
    assert context.assigned == [(0, "a.txt"), (1, "a.txt")]


def test_a_look_that_fails_is_told_and_tried_again(
    tmp_path: Path, enumerator: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, context = enumerator(path=[tmp_path / "not-yet", tmp_path / "*.csv"])
    watching.handle_split_request(0)

    def broken() -> Any:
        raise ConnectorError("cannot look for files: stale handle")

    put(tmp_path / "not-yet" / "a.txt", "a")
    age(tmp_path / "not-yet" / "a.txt", context, 5000)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        patched.setattr(watching, "_look", broken)
        assert look(watching, context) == []
        assert look(watching, context) == []
    assert caplog.messages == ["cannot look for files: stale handle; looking for files again every 1000 ms"]
    assert look(watching, context) == [(0, "a.txt")]


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_that_cannot_be_read_fails_the_job_whenever_it_comes(tmp_path: Path, is_empty: bool) -> None:
    """It would hold back all files that come after it, without an end."""
    context = Context()
    source = FilesSource.parquet(tmp_path, watch="1s", filters=[("n", ">", 1)])
    watching: Any = source.create_enumerator(context, None)
    watching.start()
    try:
        if is_empty:
            (tmp_path / "a.parquet").touch()
            message = "cannot read .*a.parquet: Parquet file size is 0 bytes"
        else:
            pq.write_table(pa.table({"m": [1]}), tmp_path / "a.parquet")
            message = "a.parquet has no column 'n'"
        age(tmp_path / "a.parquet", context, 5000)
        with pytest.raises(RejectedRecordError, match=message):
            look(watching, context)
    finally:
        watching.close()


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    for wrong, says in (("soon", "is not a duration"), (0, "must be at least 1 ms, or None"), (-1, "")):
        with pytest.raises(ConfigurationError, match=f"watch={wrong!r}.*{says}"):
            FilesSource.text(tmp_path, watch=wrong)
    assert FilesSource.text(tmp_path).boundedness is Boundedness.BOUNDED
    for form in ("text", "csv", "json_lines", "parquet"):
        assert FilesSource.of(tmp_path, form, watch="1s").boundedness is Boundedness.UNBOUNDED
    (tmp_path / "a.txt").write_text("a")
    pending = FilesSource.text(tmp_path).create_enumerator(Context(), []).snapshot()
    with pytest.raises(ConnectorError, match="cannot resume from a checkpoint that was taken without watch="):
        FilesSource.text(tmp_path, watch="1s").create_enumerator(Context(), pending)
    source = FilesSource.text(tmp_path)
    ending = source.create_enumerator(Context(), Discovered(source._plan()))
    assert [split.path for split in ending.snapshot()] == [f"{tmp_path}/a.txt"]


def test_files_of_any_filesystem_are_watched(enumerator: Make) -> None:
    memory = fsspec.filesystem("memory")
    memory.makedirs("/watched")
    try:
        # The files of this filesystem have the time of the machine.
        watching, context = enumerator(path="memory://watched/*.txt", now_ms=int(time.time() * 1000) + 10_000)
        watching.handle_split_request(0)
        memory.pipe_file("/watched/a.txt", b"a\n")
        assert look(watching, context) == [(0, "a.txt")]
    finally:
        memory.rm("/watched", recursive=True)


def test_engines_that_drive_the_enumerator_themselves_are_given_what_comes(tmp_path: Path) -> None:
    with DrivenEnumerator(FilesSource.text(tmp_path, watch="10ms"), 2) as driven:
        driven.request(1)
        assert driven.take() == {}
        put(tmp_path / "a.txt", "a\n")
        while not driven.taken(1):
            assert driven.step(timeout_s=PATIENT_S)
        ((split,),) = driven.take().values()
        assert Path(split.path).name == "a.txt"
        state = driven.snapshot()
    with DrivenEnumerator(FilesSource.text(tmp_path, watch="10ms"), 2, restored=state) as driven:
        driven.request(0)
        put(tmp_path / "b.txt", "b\n")
        while not driven.taken(0):
            assert driven.step(timeout_s=PATIENT_S)
        ((split,),) = driven.take().values()
        assert Path(split.path).name == "b.txt"


# -- in jobs ------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not condition():
            await asyncio.sleep(0.01)


def lines(out: Path) -> list[str]:
    return [line for file in out.glob("part-*") for line in file.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_file_is_read_once_whatever_fails_and_in_whichever_run(workers: int, tmp_path: Path) -> None:
    arriving, out, kept = tmp_path / "in", tmp_path / "out", tmp_path / "kept"
    expected: list[str] = []

    class Fails(sw.MapFunction[str, str]):
        def __init__(self, on: str) -> None:
            self.on = on

        def open(self, context: sw.RuntimeContext) -> None:
            self.armed = context.attempt_number == 0

        def map(self, value: str) -> str:
            if self.armed and value == self.on:
                raise RuntimeError("as told")
            return value

    def arrive(number: int) -> None:
        text = [f"{number}-{i}" for i in range(500)]
        expected.extend(text)
        put(arriving / f"{number:03}.txt", "\n".join(text) + "\n")

    async def run(first: int, end: int, fails_on: str) -> None:
        flow = sw.Pipeline("watching", parallelism=2)
        source = flow.source(FilesSource.text(arriving, watch="20ms", split_size=2000)).uid("files")
        source.map(Fails(fails_on)).sink(FilesSink.text(out)).uid("out")
        options: dict[str, Any] = {"restart": "fixed-delay:2:10ms", "workers": workers, "log_level": "error"}
        options |= {"checkpoint_interval": "20ms", "checkpoints": kept, "resume": True}
        async with await flow.start(**options) as handle:
            for number in range(first, end):
                arrive(number)
                await asyncio.sleep(0.01)
            await until(lambda: len(lines(out)) >= len(expected))
            await handle.stop(savepoint=kept)
            assert (await handle.result()).status is JobStatus.FINISHED

    asyncio.run(run(0, 10, "7-250"))
    assert sorted(lines(out)) == sorted(expected)
    for number in range(10, 13):
        arrive(number)  # while nobody looks
    asyncio.run(run(13, 20, "11-499"))
    assert sorted(lines(out)) == sorted(expected)


def test_event_time_goes_on_between_files_where_the_source_may_be_idle(tmp_path: Path) -> None:
    """The window of one stream is not held up by another that waits for files."""
    put(tmp_path / "in" / "1.txt", "1000\n")
    flow = sw.Pipeline("idle")
    strategy = sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda v: int(v))
    files = flow.source(
        FilesSource.text(tmp_path / "in", watch="20ms"), watermark_strategy=strategy.with_idleness("50ms")
    )
    ticks = flow.generate(lambda n: str(n * 100), rate=200, watermark_strategy=strategy)
    windows = files.union(ticks).key_by(lambda v: 0).window(sw.windows.TumblingEventTimeWindows("5s")).count()
    counts = windows.collect()

    async def run() -> None:
        async with await flow.start() as handle:
            await until(lambda: len(counts) > 2)
            handle.cancel()

    asyncio.run(run())
    assert counts[1:3] == [(0, 50), (0, 50)]
