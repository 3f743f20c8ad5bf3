"""Micro-batches of sources: what fails or is repeated loses and doubles nothing."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import diagonal

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import SystemClock
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Source,
    Wait,
)
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.connector.lib.function import FunctionSource
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.elements import Batch, Columns
from sluiceway.errors import ConnectorError, PluginError
from sluiceway.runtime.microbatch import batch_reader
from sluiceway.runtime.microbatch.availability import AvailabilityCheck
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import BatchPlan, BatchRead
from sluiceway.runtime.microbatch.batch_reader import BatchReader, ReaderCache
from sluiceway.runtime.microbatch.planner import PlanWhen
from sluiceway_files import FilesSource
from sluiceway_filesystem._local import LocalStorage

Drive = Callable[..., Any]
QUICK = BatchLimits(records=10, wait_s=0.05, linger_s=0.01, time_s=2.0)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """A split of :class:`ShuffledSource`."""

    name: str
    at: int
    stop: int

    @property
    def split_id(self) -> str:
        return self.name


class ShuffledSource(Source[Any]):
    """Splits of numbers, read in an order and in pieces that are never the same twice."""

    boundedness = Boundedness.BOUNDED

    def __init__(self, splits: int, each: int) -> None:
        self.splits = [Shuffled(f"s{i}", 1000 * i, 1000 * i + each) for i in range(splits)]

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, self.splits if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return _ShuffledReader(context)


class _ShuffledReader(Reader[Any]):
    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._splits: list[Shuffled] = []
        self._finished: list[str] = []
        self._no_more = False

    def start(self) -> None:
        self._context.request_split()

    def add_splits(self, splits: Sequence[Shuffled]) -> None:
        self._splits += splits
        self._context.request_split()

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> Poll[Any]:
        if not self._splits:
            return END_OF_INPUT if self._no_more else Wait()
        if random.random() < 0.2:
            return Wait(until=0.0)
        split = self._splits.pop(random.randrange(len(self._splits)))
        self.current_split_id = split.name
        end = min(split.at + random.randint(1, limit), split.stop)
        if end < split.stop:
            self._splits.append(replace(split, at=end))
        else:
            self._finished.append(split.name)
        values = list(range(split.at, end))
        return Batch(values, [value * 10 for value in values])

    def finished_splits(self) -> Sequence[str]:
        finished, self._finished = self._finished, []
        return finished

    def snapshot(self) -> list[Any]:
        return list(self._splits)

    def close(self) -> None:
        pass


class OneByOne(ShuffledSource):
    """Splits of these sizes; a reader asks for one at its start, and when it has read one."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(0, 0)
        self.splits = [Shuffled(f"s{i}", 1000 * i, 1000 * i + size) for i, size in enumerate(sizes)]
        self.records = [1000 * i + j for i, size in enumerate(sizes) for j in range(size)]

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return _OneByOneReader(context)


class _OneByOneReader(_ShuffledReader):
    def add_splits(self, splits: Sequence[Shuffled]) -> None:
        assert not self._splits
        assert len(splits) == 1
        self._splits += splits

    def poll(self, limit: int) -> Poll[Any]:
        result = super().poll(limit)
        if self._finished and not self._no_more:
            self._context.request_split()
        return result


class Once(CollectionSource[Any]):
    """A collection that is read once."""

    seekable = False


def values_of(got: list[Any]) -> list[Any]:
    return [value for values, _, _ in got[:-1:3] for value in values]


def lines(directory: Path, files: int, each: int) -> list[str]:
    directory.mkdir()
    for i in range(files):
        (directory / f"{i:03}.txt").write_text("".join(f"{i}-{j}\n" for j in range(each)))
    return [f"{i}-{j}" for i in range(files) for j in range(each)]


def drain(reader: BatchReader) -> None:
    while not isinstance(result := reader.poll(4), Wait):
        assert result is not END_OF_INPUT


def test_a_bounded_source_is_read_to_its_end(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(95)), storage)
    batches = 0
    while driver.run_batch():
        batches += 1
    driver.close()
    assert sorted(driver.given) == list(range(95))
    assert batches == 5  # of 20 records, by two readers; nobody has to read nothing to know that it is over


def test_an_engine_that_wants_the_end_from_the_readers_gets_a_batch_for_it(
    drive: Drive, storage: CheckpointStorage
) -> None:
    driver = drive(CollectionSource(range(40)), storage)
    while not driver.planner.ended(driver.batch):
        assert driver.run_batch(when=PlanWhen.ALWAYS)
        assert driver.batch < 10
    assert sorted(driver.given) == list(range(40))
    assert not driver.planner.ended(driver.batch - 1)
    assert driver.run_batch(when=PlanWhen.ALWAYS)  # as other sources of the job may go on
    driver.restart()
    assert driver.run_batch(when=PlanWhen.ALWAYS)
    assert driver.planner.work(driver.batch) == []
    assert driver.planner.ended(driver.batch)
    driver.close()


def test_many_small_files_make_few_batches(drive: Drive, storage: CheckpointStorage, tmp_path: Path) -> None:
    expected = lines(tmp_path / "in", 60, 3)
    limits = replace(QUICK, records=1000)
    driver = drive(FilesSource.text(str(tmp_path / "in")), storage, limits=limits)
    while driver.run_batch():
        pass
    driver.close()
    assert sorted(driver.given) == sorted(expected)
    assert driver.batch <= 5  # 4, 8, 16, 32 files at a time for each of two readers


def _read_in_each(driver: Any) -> list[list[int]]:
    """Run all batches; return how many records each reader has read in each."""
    while driver.run_batch():
        pass
    records = [[driver.files.read(batch, reader) for reader in (0, 1)] for batch in range(1, driver.batch + 1)]
    driver.close()
    return [[0 if read is None else read.count for read in both] for both in records]


def test_a_reader_near_the_end_of_its_split_has_the_next_one_too(drive: Drive, storage: CheckpointStorage) -> None:
    source = OneByOne(*[11] * 16)
    driver = drive(source, storage)
    counts = _read_in_each(driver)
    assert sorted(driver.given) == source.records
    assert counts[:-1] == [[10, 10]] * 8


def test_splits_that_nobody_has_begun_are_dealt_anew_for_readers_without(
    drive: Drive, storage: CheckpointStorage
) -> None:
    source = OneByOne(*[2, 50] * 4)
    driver = drive(source, storage)
    counts = _read_in_each(driver)
    assert sorted(driver.given) == source.records
    assert counts[0] == [8, 10], "reader 0 was assigned the small ones"
    assert counts[1:10] == [[10, 10]] * 9


@pytest.mark.parametrize(("splits", "first"), [(20, 10), (6, 9), (4, 6), (3, 3)])
def test_splits_that_a_reader_has_not_received_when_it_ends_by_itself_go_to_others(
    drive: Drive, storage: CheckpointStorage, splits: int, first: int
) -> None:
    class EndsEarly(_OneByOneReader):
        """The first reader reads one split."""

        def poll(self, limit: int) -> Poll[Any]:
            if self._context.subtask == 1:
                return super().poll(limit)
            is_over = self.current_split_id is not None and not self._splits
            return END_OF_INPUT if is_over else _ShuffledReader.poll(self, limit)

    class Parts(OneByOne):
        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return EndsEarly(context)

    source = Parts(*[3] * splits)
    driver = drive(source, storage, cache=ReaderCache())
    counts = _read_in_each(driver)
    assert counts[0] == [3, first]
    assert sorted(driver.given) == source.records


@pytest.mark.parametrize("when", [PlanWhen.SPLITS, PlanWhen.NEWS])
def test_a_split_of_a_reader_that_ends_without_it_and_that_nobody_else_reads_is_told_of(
    drive: Drive, storage: CheckpointStorage, when: PlanWhen
) -> None:
    class EndsAtOnce(_OneByOneReader):
        """The first reader reads nothing."""

        def start(self) -> None:
            if self._context.subtask == 1:
                super().start()

        def poll(self, limit: int) -> Poll[Any]:
            return super().poll(limit) if self._context.subtask == 1 else END_OF_INPUT

    class Parts(OneByOne):
        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return EndsAtOnce(context)

    driver = drive(Parts(3, 3), storage)

    def run() -> None:
        while not driver.planner.ended(driver.batch) and driver.run_batch(when=when):
            assert driver.batch < 10

    with pytest.raises(ConnectorError, match=r"reader 0 of Parts returned END_OF_INPUT before .*: 's0'\. Have"):
        run()
    driver.close()


def test_splits_stay_with_the_reader_that_their_enumerator_has_chosen(
    drive: Drive, storage: CheckpointStorage
) -> None:
    """Each reader has the parts of one file, in their order."""

    class InOrder(SimpleEnumerator):
        def handle_split_request(self, reader: int) -> None:
            mine = next((split for split in self._pending if split.at // 1000 % 2 == reader), None)
            if mine is None:
                self._context.no_more_splits(reader)
            else:
                self._pending.remove(mine)
                self._context.assign(reader, [mine])

    class Parts(OneByOne):
        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            return InOrder(context, self.splits if restored is None else restored)

    source = Parts(*[2, 50] * 4)
    driver = drive(source, storage)
    counts = _read_in_each(driver)
    assert sorted(driver.given) == source.records
    assert counts[0] == [8, 10]
    assert {count for count, _ in counts[1:]} == {0}, "reader 0 has no others"


def test_a_reader_that_was_notified_of_its_end_is_dealt_no_splits(
    drive: Drive, storage: CheckpointStorage
) -> None:
    source = OneByOne(30, 10, 30)  # the second reader has read all that it knows of when the batch is full
    driver = drive(source, storage, cache=ReaderCache())
    counts = _read_in_each(driver)
    assert counts[0] == [10, 10]
    assert sorted(driver.given) == source.records


@pytest.mark.parametrize(
    ("kind", "seed"),
    diagonal(
        [
            "shuffled",
            "uneven",
            "collection",
            "files",
            "function",
            "columns",
            "columns of files",
            "columns once",
        ],
        range(4),
    ),
)
def test_whatever_fails_nothing_is_lost_or_double(drive: Drive, kind: str, seed: int, tmp_path: Path) -> None:
    """Attempts that die anywhere, drivers that begin anew, batches that are repeated: always the same records."""
    place = tmp_path
    draw = random.Random(seed)
    random.seed(seed)
    source: Source[Any]
    if kind == "shuffled":
        source = ShuffledSource(5, 17)
        expected: list[Any] = [1000 * i + j for i in range(5) for j in range(17)]
    elif kind == "uneven":
        source = OneByOne(*(draw.choice([1, 3, 40]) for _ in range(14)))
        expected = source.records
    elif kind == "collection":
        source, expected = CollectionSource(range(70), timestamp=lambda n: n), list(range(70))
    elif kind == "files":
        expected = lines(place / "in", 7, 9)
        source = FilesSource.text(str(place / "in"))
    elif kind.startswith("columns"):
        rows = pa.record_batch({"n": list(range(3000))})
        source, expected = (
            Once(Columns(rows)) if "once" in kind else CollectionSource(Columns(rows)),
            rows.to_pylist(),
        )
        if "files" in kind:
            for part in range(3):
                pq.write_table(pa.table(rows[part * 1000 : part * 1000 + 1000]), place / f"{part}.parquet")
            in_columns = FilesSource.parquet(str(place / "*.parquet")).in_columns()
            assert in_columns is not None
            source = in_columns[0]
    else:
        source, expected = FunctionSource(lambda: iter(range(45))), list(range(45))
    cache = draw.choice([None, ReaderCache()])
    readers = 1 if kind == "function" else 2
    driver = drive(source, LocalStorage(str(place / "positions")), readers, cache=cache)
    try:
        while True:
            if draw.random() < 0.5:
                driver.restart()
            if driver.planner.plan(driver.batch + 1) is None:
                break
            driver.batch += 1
            for times in range(draw.randint(1, 2)):  # the whole batch again, after a new start
                if times or draw.random() < 0.5:
                    driver.restart()
                for work in driver.planner.work(driver.batch):
                    for _ in range(draw.randint(0, 2)):
                        driver.attempt(work, most=draw.randint(1, 4))
                    first, _ = driver.attempt(work)
                    again, _ = driver.attempt(work)
                    assert first == again
                    if not times:
                        driver.given += values_of(first)
            driver.planner.committed(driver.batch)
    finally:
        driver.close()
    assert sorted(driver.given, key=str) == sorted(expected, key=str)
    assert driver.batch >= 3
    assert driver.in_columns == {kind.startswith("columns")}


def test_logs_of_earlier_versions_have_the_defaults_of_what_they_did_not_know() -> None:
    plan = BatchPlan({0: ["a"]}, frozenset(), frozenset(), frozenset(), None, 1, 0.5, 0.1, 5.0, 10, still_ms=3)
    read = BatchRead((), ["a"], True, False, False, token="t")
    for written, known in ((plan, 13), (read, 9)):
        earlier = type(written).__new__(type(written))
        earlier.__setstate__([getattr(written, each.name) for each in fields(written)][:known])
        assert earlier == written
        assert pickle.loads(pickle.dumps(earlier)) == written


def test_the_attempt_that_is_faster_is_the_one_that_counts(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(ShuffledSource(3, 30), storage, 1)
    assert driver.planner.plan(1) is not None
    (work,) = driver.planner.work(1)
    slow = BatchReader(driver.planner.source, work, driver.files)
    slow.start()
    random.seed(1)
    while isinstance(slow.poll(4), Batch):
        pass
    random.seed(2)
    fast, read = driver.attempt(work)
    with pytest.raises(ConnectorError, match=r"another attempt at batch 1 of reader 0 finished first and has"):
        slow.finish()
    again, read_again = driver.attempt(work)
    assert again == fast
    assert read == read_again
    driver.close()


def test_two_attempts_that_read_the_same_do_not_mind_each_other(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(30)), storage, 1)
    driver.planner.plan(1)
    (work,) = driver.planner.work(1)
    slow = BatchReader(driver.planner.source, work, driver.files)
    slow.start()
    while isinstance(slow.poll(4), list):
        pass
    _, read = driver.attempt(work)  # which asks, after each poll, who has to wait; nobody has
    reader = BatchReader(driver.planner.source, work, driver.files)
    reader.start()
    assert reader.is_replay
    assert read is not None
    assert reader.finish(b"other") == read
    reader.close()
    slow.close()
    driver.close()


def test_a_source_that_does_not_give_the_same_again_is_told_of(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(30)), storage, 1)
    driver.run_batch()
    work = driver.planner.work(1)[0]
    reader = BatchReader(CollectionSource(range(5)), work, driver.files)
    reader.start()
    with pytest.raises(ConnectorError, match=r"returned fewer records than before when batch 1 was read again"):
        drain(reader)
    reader.close()
    driver.close()


def test_a_replay_does_not_wait_for_ever_for_records_that_an_unbounded_source_has_lost(
    drive: Drive, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "_REPLAY_WAIT_S", 0.1)
    driver = drive(Topic([Shuffled("a", 0, 8)], _Following), storage, 1)
    assert driver.run_batch()
    work = driver.planner.work(1)[0]
    shortened = replace(work, splits=[replace(split, stop=5) for split in work.splits])
    reader = BatchReader(driver.source, shortened, driver.files)
    reader.start()
    with pytest.raises(ConnectorError, match=r"again: 0 instead of 1 of 'a', and no more within 0\.1 s\. A"):
        drain(reader)
    reader.close()
    driver.close()


class Mixed(CollectionSource[int]):
    """Source whose polls return a list, a batch with timestamps, or columns: each form for two records."""

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        reader = super().create_reader(context)
        poll = reader.poll

        def mixed(limit: int) -> Poll[Any]:
            found = poll(1)
            if not isinstance(found, list) or (form := found[0] // 2 % 4) == 0:
                return found
            if form % 2:
                return Batch(found, found)
            return Batch.of_columns(pa.record_batch({"n": found}), found if found[0] % 2 else None)

        reader.poll = mixed  # type: ignore[method-assign]
        return reader


class MixedOnce(Mixed):
    seekable = False


@pytest.mark.parametrize("kind", [Mixed, MixedOnce])
def test_records_whose_form_changes_are_all_read_with_their_own_timestamps(
    drive: Drive, storage: CheckpointStorage, kind: Callable[..., Any]
) -> None:
    driver = drive(kind(range(40)), storage, 1)
    found: list[tuple[Any, int | None]] = []
    while driver.planner.plan(driver.batch + 1) is not None:
        driver.batch += 1
        for work in driver.planner.work(driver.batch):
            first, _ = driver.attempt(work)
            again, _ = driver.attempt(work)
            assert first == again
            for values, stamps, _ in first[:-1:3]:
                found += zip(values, stamps or [None] * len(values), strict=True)
        driver.planner.committed(driver.batch)
    driver.close()
    assert found == [
        ({"n": n}, n if n % 2 else None) if n // 2 % 4 == 2 else (n, n if n // 2 % 2 else None) for n in range(40)
    ]


def test_a_source_that_gives_other_forms_again_is_told_of(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(30)), storage, 1)
    driver.run_batch()
    reader = BatchReader(Mixed(range(30)), driver.planner.work(1)[0], driver.files)
    reader.start()
    with pytest.raises(
        ConnectorError,
        match=r"in other forms than before when batch 1 was read again: 2 records without timestamps, then "
        r"records with timestamps, instead of 4 of one form of 'slice-0'\. A source has to return the same",
    ):
        drain(reader)
    reader.close()
    driver.close()


class TalliedSource(CollectionSource[int]):
    """Source whose reader counts its polls with records, and shows the last number."""

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        poll, polls, shown = reader.poll, context.metrics.counter("polls"), [0]

        def tallied(limit: int) -> Poll[int]:
            found = poll(limit)
            if isinstance(found, list):
                polls.inc()
                shown[0] = found[-1]
            return found

        context.metrics.gauge("last", lambda: shown[0])
        reader.poll = tallied  # type: ignore[method-assign]
        return reader


def test_figures_of_readers_are_those_of_each_batch(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(TalliedSource(range(30)), storage, 1, cache=ReaderCache())
    read: list[dict[str, float]] = []
    for batch in (1, 2):
        driver.planner.plan(batch)
        (work,) = driver.planner.work(batch)
        for _ in ("read", "read again by another attempt"):
            reader = BatchReader(driver.planner.source, work, driver.files, cache=driver.cache)
            reader.start()
            while isinstance(reader.poll(5), list):
                pass
            reader.finish()
            read.append(reader.metrics.read())
            reader.close()
        driver.planner.committed(batch)
    driver.close()
    first, again, second, third = read
    assert first == again == {"polls": 2, "last": 9}
    assert second == third == {"polls": 2, "last": 19}


class WrongReader(CollectionSource[int]):
    """A source whose method has no ``return``."""

    def create_reader(self, context: ReaderContext) -> Any:
        super().create_reader(context)


def test_a_source_that_creates_no_reader_is_told_of(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(WrongReader(range(30)), storage, 1)
    with pytest.raises(PluginError, match=r"WrongReader.create_reader\(\) returned None; it must return a Reader"):
        driver.run_batch()
    driver.close()


class Forgetful(CollectionSource[int]):
    """A source whose readers do not return their splits."""

    def create_reader(self, context: ReaderContext) -> Any:
        reader = super().create_reader(context)
        reader.snapshot = lambda: None  # type: ignore[assignment, method-assign, return-value]
        return reader


def test_a_reader_that_returns_no_splits_is_told_of(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(Forgetful(range(30)), storage, 1)
    with pytest.raises(PluginError, match=r"snapshot\(\) returned None; it must return a list of splits"):
        driver.run_batch()
    driver.close()


@pytest.mark.parametrize("is_seekable", [True, False], ids=["read again", "read once"])
@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, r"returned None \(NoneType\) from poll\(\); it must"),
        ([], r"returned no records from poll\(\)"),
        (Batch([1, 2, 3], [5]), r"returned a Batch with 3 records and 1 timestamps from poll\(\); each record"),
    ],
)
def test_a_poll_without_a_result_is_not_the_end_of_the_input(
    drive: Drive, storage: CheckpointStorage, is_seekable: bool, result: Any, says: str
) -> None:
    class Silent(CollectionSource[int]):
        seekable = is_seekable

        def create_reader(self, context: ReaderContext) -> Any:
            reader = super().create_reader(context)
            reader.poll = lambda limit: result  # type: ignore[assignment, method-assign]
            return reader

    driver = drive(Silent(range(30)), storage, 1)
    with pytest.raises(ConnectorError, match=says):
        driver.run_batch()
    driver.close()


@pytest.mark.parametrize("stays_open", [True, False])
def test_a_reader_publishes_the_positions_of_a_batch_when_the_next_one_begins(
    drive: Drive, storage: CheckpointStorage, stays_open: bool
) -> None:
    published: list[list[Any]] = []

    class Publishing(CollectionSource[int]):
        def create_reader(self, context: ReaderContext) -> Any:
            reader = super().create_reader(context)
            reader.checkpoint_completed = lambda splits: published.append(list(splits))  # type: ignore[method-assign]
            return reader

    driver = drive(Publishing(range(25)), storage, 1, cache=ReaderCache() if stays_open else None)
    left: list[list[Any]] = []
    while driver.run_batch():
        read = driver.files.read(driver.batch, 0)
        assert published == left
        assert read is not None
        left += [read.splits] if read.splits else []
    driver.close()
    assert len(left) == 2


# -- readers that are kept open ---------------------------------------------------------------------------------


class Counting(CollectionSource[int]):
    """A collection that counts its readers."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))
        self.opened = self.closed = 0

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        self.opened += 1
        reader = super().create_reader(context)
        close = reader.close

        def closed() -> None:
            self.closed += 1
            close()

        reader.close = closed  # type: ignore[method-assign]
        return reader


def test_a_reader_stays_open_between_batches(drive: Drive, storage: CheckpointStorage) -> None:
    source = Counting(60)
    driver = drive(source, storage, cache=ReaderCache())
    while driver.run_batch():
        pass
    assert (source.opened, source.closed) == (2, 0)
    driver.close()
    assert source.closed == 2
    assert sorted(driver.given) == list(range(60))


def test_a_reader_that_has_left_another_file_is_not_used(drive: Drive, storage: CheckpointStorage) -> None:
    source = Counting(60)
    here, elsewhere = ReaderCache(), ReaderCache()
    driver = drive(source, storage, 1, cache=here)
    driver.run_batch()
    driver.cache = elsewhere  # as if the next batch was read by another process
    driver.run_batch()
    driver.cache = here
    driver.run_batch()
    assert driver.given == list(range(30))
    assert source.opened == 3
    assert source.closed == 1  # the first, which was kept here
    here.close()
    elsewhere.close()
    driver.close()
    assert source.closed == 3


def test_a_reader_of_another_program_is_not_used(drive: Drive, storage: CheckpointStorage) -> None:
    """Its source may have another decoder by now."""
    source = Counting(60)
    driver = drive(source, storage, 1, cache=ReaderCache())
    driver.run_batch()
    driver.program = "second"
    driver.run_batch()
    driver.run_batch()
    assert (driver.given, source.opened, source.closed) == (list(range(30)), 2, 1)
    driver.close()


class Rejecting(CollectionSource[int]):
    """Source whose only record cannot be decoded, and which returns nothing before that was taken."""

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        bad: list[tuple[Any, Exception, int | None]] = [(b"x", ValueError("no number"), None)]

        def poll(limit: int) -> Poll[int]:
            return Wait(until=0.0) if bad else Wait()

        def rejected() -> list[tuple[Any, Exception, int | None]]:
            taken = list(bad)
            bad.clear()
            return taken

        reader.poll, reader.rejected = poll, rejected  # type: ignore[method-assign]
        return reader


def test_a_record_that_cannot_be_decoded_is_news(drive: Drive, storage: CheckpointStorage) -> None:
    """Else a query would stand still behind one that comes alone, and nothing would say so."""
    driver = drive(Rejecting(range(9)), storage, 1)
    lookout = AvailabilityCheck(driver.source, 1, SystemClock())
    try:
        state = BatchRead((), [], asked=False, ended=False, dry=True)
        assert lookout.sees(0, state)
    finally:
        lookout.close()
    with pytest.raises(ValueError, match="no number"):
        driver.run_batch()
    driver.close()


# -- sources that wait ------------------------------------------------------------------------------------------


class Slow(Source[int]):
    """One split without an end; the test says when there is something."""

    boundedness = Boundedness.UNBOUNDED

    def __init__(self) -> None:
        self.there: list[int] = []
        self.wake: Callable[[], None] = lambda: None

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, [Shuffled("all", 0, 1)] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        self.wake = context.wake
        return _SlowReader(context, self)


class _SlowReader(_ShuffledReader):
    def __init__(self, context: ReaderContext, source: Slow) -> None:
        super().__init__(context)
        self._source = source

    def poll(self, limit: int) -> Poll[int]:
        taken, self._source.there = self._source.there[:limit], self._source.there[limit:]
        return taken or Wait()


def test_a_batch_waits_for_what_comes_late(drive: Drive, storage: CheckpointStorage) -> None:
    source = Slow()
    driver = drive(source, storage, 1, limits=replace(QUICK, wait_s=30.0))
    assert driver.planner.plan(1) is not None
    reader = BatchReader(source, driver.planner.work(1)[0], driver.files)
    reader.start()

    def comes() -> None:
        source.there = [1, 2, 3]
        source.wake()

    thread = threading.Timer(0.05, comes)
    thread.start()
    assert reader.poll(10) == [1, 2, 3]
    assert isinstance(reader.poll(10), Wait)
    assert reader.finish().dry
    reader.close()
    thread.join()
    driver.close()


def test_a_batch_may_be_empty_and_the_next_one_goes_on(drive: Drive, storage: CheckpointStorage) -> None:
    source = Slow()
    driver = drive(source, storage, 1)
    assert driver.run_batch()
    assert driver.given == []
    source.there = [7]
    assert driver.run_batch()
    assert driver.given == [7]
    driver.close()


class OneOfTwo(Slow):
    """Two splits, of which one has all records."""

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        splits = [Shuffled("busy", 0, 1), Shuffled("still", 0, 1)]
        return SimpleEnumerator(context, splits if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _BusyReader(context, self)


class _BusyReader(_SlowReader):
    current_split_id = "busy"


def test_splits_without_records_are_silent_beside_others(drive: Drive, storage: CheckpointStorage) -> None:
    source = OneOfTwo()
    driver = drive(source, storage, 1)
    assert driver.run_batch()
    source.there = [7]
    assert driver.planner.plan(2) is not None
    (work,) = driver.planner.work(2)
    assert work.since_ms >= work.silent_ms
    first, again = (BatchReader(source, work, driver.files) for _ in range(2))
    for reader in (first, again):
        source.there = [7]
        reader.start()
        while isinstance(reader.poll(10), list):
            pass
        assert reader.silent == {"still"}
        reader.finish()
        reader.close()
    assert again.is_replay
    driver.close()


def test_what_is_there_now_comes_to_an_end(drive: Drive, storage: CheckpointStorage) -> None:
    source = Slow()
    source.there = list(range(25))
    driver = drive(source, storage, 1)
    while driver.run_batch(dry_since=0):
        assert driver.batch < 10
    assert driver.given == list(range(25))
    source.there = [25]
    assert not driver.run_batch(dry_since=0)
    assert driver.run_batch(dry_since=driver.batch)  # another run of the query
    assert driver.given == list(range(26))
    driver.close()


def test_numbers_that_are_not_due_are_not_there_now(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(GeneratorSource(rate=200.0), storage, 2)
    while driver.run_batch(dry_since=0):
        assert driver.batch < 50
    assert driver.given
    driver.close()


class Growing(SimpleEnumerator):
    """Finds more splits when the test says so."""

    found: list[Shuffled]

    def __init__(self, context: EnumeratorContext, restored: Any) -> None:
        super().__init__(context, restored or [])
        self._asking: list[int] = []

    def handle_split_request(self, reader: int) -> None:
        self._asking.append(reader)
        self.run()

    def run(self) -> None:
        self._pending += self.found
        self.found.clear()
        while self._pending and self._asking:
            self._context.assign(self._asking.pop(0), [self._pending.pop(0)])


class InOneAnswer(ShuffledSource):
    """Gives all splits for the one request of a reader, which reads them in turn."""

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        splits = self.splits if restored is None else restored

        class All(SimpleEnumerator):
            def handle_split_request(self, reader: int) -> None:
                context.assign(reader, self._pending[:])
                self._pending.clear()
                context.no_more_splits(reader)

        return All(context, splits)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        class AsksOnce(_ShuffledReader):
            def add_splits(self, splits: Sequence[Shuffled]) -> None:
                self._splits += splits

        return AsksOnce(context)


@pytest.mark.parametrize("cache", [None, ReaderCache()], ids=["closed", "kept open"])
def test_a_reader_that_asks_once_and_waits_is_given_what_is_left(
    drive: Drive, storage: CheckpointStorage, cache: ReaderCache | None
) -> None:
    driver = drive(InOneAnswer(6, 4), storage, 1, cache=cache)
    assert driver.run_batch()
    assert len(driver.given) == 10, "as many as the limit says, of several splits"
    while driver.run_batch():
        pass
    driver.close()
    assert sorted(driver.given) == [1000 * i + j for i in range(6) for j in range(4)]


class Pushing(SimpleEnumerator):
    """Assigns a split whenever it has found one, without being asked, as partitions of a topic are."""

    found: list[Shuffled]

    def handle_split_request(self, reader: int) -> None:
        """Readers get splits without asking."""

    def start(self) -> None:
        self.run()

    def run(self) -> None:
        self._context.assign(0, self.found[:])
        self.found.clear()


class Topic(ShuffledSource):
    """Splits that never end, pushed as they are found.

    Args:
        found: the splits that nobody has been assigned; a test adds some.
        reader: class of the readers.
    """

    boundedness = Boundedness.UNBOUNDED

    def __init__(self, found: list[Shuffled], reader: Callable[[ReaderContext], Reader[Any]]) -> None:
        super().__init__(0, 0)
        self._found, self._reader = found, reader

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        enumerator = Pushing(context, restored or [])
        enumerator.found = self._found
        self.wake = context.wake
        return enumerator

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return self._reader(context)


class _Following(_ShuffledReader):
    """Reader of splits that never end, in turn, which asks for none."""

    def start(self) -> None:
        pass

    def add_splits(self, splits: Sequence[Shuffled]) -> None:
        self._splits += splits

    def poll(self, limit: int) -> Poll[Any]:
        for split in self._splits:
            if split.at < split.stop:
                self._splits.remove(split)
                self._splits.append(replace(split, at=split.at + 1))
                self.current_split_id = split.name
                return [split.at]
        return Wait()


@pytest.mark.parametrize("kept", [True, False], ids=["kept open", "closed"])
def test_splits_are_given_at_once_to_a_reader_that_does_not_ask(
    drive: Drive, storage: CheckpointStorage, kept: bool
) -> None:
    found = [Shuffled("a", 0, 3)]
    topic = Topic(found, _Following)
    driver = drive(topic, storage, 1, cache=ReaderCache() if kept else None)
    assert driver.run_batch()
    assert driver.given == [0, 1, 2]
    found.append(Shuffled("b", 100, 102))  # beside the first one, which goes on
    topic.wake()
    assert driver.run_batch()
    driver.close()
    assert driver.given == [0, 1, 2, 100, 101]


class _FollowingOnRequest(_Following):
    """The same, which makes one request at its start."""

    def start(self) -> None:
        self._context.request_split()


class _Answering(SimpleEnumerator):
    """Answers a request with all splits, in two calls."""

    def handle_split_request(self, reader: int) -> None:
        for splits in self._pending[:1], self._pending[1:]:
            self._context.assign(reader, splits)
        self._pending.clear()


class _Adding(_Answering):
    """Assigns all splits to each reader that is added, and ignores requests."""

    def add_reader(self, reader: int) -> None:
        super().handle_split_request(reader)

    def handle_split_request(self, reader: int) -> None:
        pass


@pytest.mark.parametrize("enumerator", [_Answering, _Adding])
def test_splits_that_are_assigned_together_are_read_together(
    drive: Drive, storage: CheckpointStorage, enumerator: Callable[..., Any]
) -> None:
    """None of them ends, so that the reader makes no further request."""

    class Topics(ShuffledSource):
        boundedness = Boundedness.UNBOUNDED

        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            made: Enumerator = enumerator(context, self.splits if restored is None else restored)
            return made

        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return _FollowingOnRequest(context)

    driver = drive(Topics(3, 40), storage, 1)
    assert driver.run_batch()
    assert driver.given == [0, 1000, 2000, 1, 1001, 2001, 2, 1002, 2002, 3]
    driver.close()


@pytest.mark.parametrize("kind", ["kept open", "closed", "read once"])
def test_a_reader_has_as_many_splits_at_a_time_as_it_has_asked_for(
    drive: Drive, storage: CheckpointStorage, kind: str
) -> None:
    class Two(_Following):
        def start(self) -> None:
            self._context.request_split()
            self._context.request_split()

    class Topics(ShuffledSource):
        seekable = kind != "read once"

        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return Two(context)

    driver = drive(Topics(5, 40), storage, 1, cache=ReaderCache() if kind == "kept open" else None)
    assert driver.run_batch()
    assert driver.run_batch()
    assert driver.given == [n for i in range(10) for n in (i, 1000 + i)]
    driver.close()


@pytest.mark.parametrize("kept", [True, False], ids=["kept open", "closed"])
def test_splits_that_are_pushed_to_a_reader_with_a_request_are_read_when_it_waits(
    drive: Drive, storage: CheckpointStorage, kept: bool
) -> None:
    found = [Shuffled("a", 0, 13)]
    topic = Topic(found, _FollowingOnRequest)
    driver = drive(topic, storage, 1, cache=ReaderCache() if kept else None)
    assert driver.run_batch()
    for name, at in ("b", 100), ("c", 200):
        found.append(Shuffled(name, at, at + 2))
        topic.wake()
        assert driver.run_batch()
    driver.close()
    assert sorted(driver.given) == [*range(13), 100, 101, 200, 201]


class _Announcing(_Adding):
    """Says that no splits follow when the readers have read those that they have."""

    def run(self) -> None:
        for reader in range(self._context.parallelism):
            self._context.no_more_splits(reader)


@pytest.mark.parametrize("is_seekable", [True, False], ids=["read again", "read once"])
def test_an_end_that_is_announced_later_reaches_readers_that_do_not_ask(
    drive: Drive, storage: CheckpointStorage, is_seekable: bool
) -> None:
    made: list[_Announcing] = []

    class Topics(ShuffledSource):
        seekable = is_seekable

        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            made.append(_Announcing(context, self.splits if restored is None else restored))
            return made[-1]

        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            reader = _ShuffledReader(context)
            reader.start = lambda: None  # type: ignore[method-assign]
            reader.add_splits = reader._splits.extend  # type: ignore[method-assign, assignment]
            return reader

    driver = drive(Topics(3, 4), storage)
    while len(driver.given) < 12:
        assert driver.run_batch()
    assert not driver.planner.ended(driver.batch)
    made[-1]._context.wake()
    while not driver.planner.ended(driver.batch):
        assert driver.run_batch(when=PlanWhen.NEWS)
    driver.close()


class _OnDemandReader(_OneByOneReader):
    """Reader that makes its requests when it is polled."""

    def start(self) -> None:
        pass

    def poll(self, limit: int) -> Poll[Any]:
        if not self._splits and not self._no_more:
            self._context.request_split()
        return _ShuffledReader.poll(self, limit)


def test_a_reader_that_asks_when_it_is_polled_has_one_split_at_a_time(
    drive: Drive, storage: CheckpointStorage
) -> None:
    class OnDemand(OneByOne):
        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return _OnDemandReader(context)

    source = OnDemand(25, 3, 10, 1, 7, 40)
    driver = drive(source, storage)
    while driver.run_batch():
        pass
    driver.close()
    assert sorted(driver.given) == source.records


class _InTurnReader(_Following):
    """Reader of splits in turn, which does not say which one its records are from."""

    def start(self) -> None:
        self._context.request_split()

    def poll(self, limit: int) -> Poll[Any]:
        found = super().poll(limit)
        self.current_split_id = None
        ended = [split for split in self._splits if split.at == split.stop]
        for split in ended:
            self._splits.remove(split)
            self._context.request_split()
        return END_OF_INPUT if self._no_more and not self._splits and isinstance(found, Wait) else found


def test_a_reader_that_names_no_splits_repeats_a_batch_with_those_that_it_had(
    drive: Drive, storage: CheckpointStorage
) -> None:
    class InTurn(OneByOne):
        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            splits = self.splits if restored is None else restored

            class Pairs(SimpleEnumerator):
                def handle_split_request(self, reader: int) -> None:
                    context.assign(reader, self._pending[:2])
                    del self._pending[:2]
                    if not self._pending:
                        context.no_more_splits(reader)

            return Pairs(context, splits)

        def create_reader(self, context: ReaderContext) -> Reader[Any]:
            return _InTurnReader(context)

    source = InTurn(7, 3, 12, 2, 5, 1, 20, 4)
    driver = drive(source, storage, 1)
    while driver.planner.plan(driver.batch + 1) is not None:
        driver.batch += 1
        for work in driver.planner.work(driver.batch):
            first, _ = driver.attempt(work)
            again, _ = driver.attempt(work)
            assert values_of(first) == values_of(again)
            driver.given += values_of(first)
    driver.close()
    assert sorted(driver.given) == source.records


class _ForTheOther(SimpleEnumerator):
    """Assigns a split to the other reader at each request."""

    def handle_split_request(self, reader: int) -> None:
        if self._pending:
            self._context.assign(1 - reader, [self._pending.pop(0)])
        else:
            for each in (0, 1):
                self._context.no_more_splits(each)


def test_a_driver_that_begins_anew_has_splits_of_a_source_that_is_read_once_and_no_reader_has_received(
    drive: Drive, storage: CheckpointStorage
) -> None:
    class ReadOnce(ShuffledSource):
        seekable = False

        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            return _ForTheOther(context, self.splits if restored is None else restored)

    driver = drive(ReadOnce(6, 4), storage)
    while driver.run_batch():
        driver.restart()
    driver.close()
    assert sorted(driver.given) == [1000 * i + j for i in range(6) for j in range(4)]


def test_splits_that_are_found_later_are_read_and_until_then_nothing_runs(
    drive: Drive, storage: CheckpointStorage
) -> None:
    made: list[Growing] = []

    class Found(ShuffledSource):
        boundedness = Boundedness.UNBOUNDED

        def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
            made.append(Growing(context, restored))
            made[-1].found = found
            return made[-1]

    found: list[Shuffled] = []
    driver = drive(Found(0, 0), storage, 2)
    assert not driver.run_batch()
    found.append(Shuffled("a", 0, 5))
    made[-1]._context.wake()
    assert driver.run_batch()
    assert driver.given == list(range(5))
    assert not driver.run_batch()
    driver.restart()
    found.append(Shuffled("b", 5, 12))
    assert driver.run_batch()
    assert sorted(driver.given) == list(range(12))
    driver.close()
