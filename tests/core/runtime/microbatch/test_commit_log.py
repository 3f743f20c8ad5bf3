"""What tasks and the driver do so that each batch is in the sink once."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile
from sluiceway.connector import CommittingSinkWriter, Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.lib import CallbackSink
from sluiceway.elements import Batch
from sluiceway.errors import CheckpointError, ConfigurationError, ConnectorError, StateError
from sluiceway.functions import CheckpointedFunction, FunctionInitializationContext, FunctionSnapshotContext
from sluiceway.runtime.microbatch.commit_log import CommitLog, CommitRecord
from sluiceway.runtime.microbatch.sinks import Written
from sluiceway.runtime.microbatch.transactions import SingleBatch, StreamOfBatches
from sluiceway.state import ListState, ListStateDescriptor
from sluiceway.testing import BreakingSink, InjectedError
from sluiceway_files import FilesSink
from sluiceway_filesystem import sluiceway_checkpoint_storages
from sluiceway_sql import SqlSink

QUERY = "the-query"
TASKS = 3
BATCHES = 3


def storage_at(place: Path) -> CheckpointStorage:
    [offer] = sluiceway_checkpoint_storages()
    storage: CheckpointStorage = offer.load()(str(place))
    return storage


def rows_of(batch: int, subtask: int) -> list[dict[str, int]]:
    first = (batch * TASKS + subtask) * 10
    return [{"n": n} for n in range(first, first + 10)]


EVERYTHING = Counter(range(BATCHES * TASKS * 10))


class Killed(BaseException):
    """The process ends here, as far as what comes after it is concerned."""


class DyingStorage(CheckpointStorage):
    """Ends the process before or after it writes the record of a batch, once."""

    def __init__(self, storage: CheckpointStorage, moment: str, batch: int) -> None:
        self._storage = storage
        self.location = storage.location
        self._moment, self._name = moment, f"commits/{batch}"

    def write(self, name: str, parts: Iterable[bytes]) -> int:
        if name == self._name and self._moment == "before the record":
            self._moment = ""
            raise Killed
        size = self._storage.write(name, parts)
        if name == self._name and self._moment == "after the record":
            self._moment = ""
            raise Killed
        return size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._storage.read(name, offset, size)

    def files(self, directory: str = "") -> Iterator[StoredFile]:
        return self._storage.files(directory)

    def delete(self, names: Iterable[str]) -> None:
        self._storage.delete(names)


class Kind(NamedTuple):
    make: Callable[[Path], Sink[Any]]
    numbers: Callable[[Path], Iterable[int]]


def in_text(out: Path) -> Iterable[int]:
    return (int(line) for path in out.glob("part-*") for line in path.read_text().split())


def in_parquet(out: Path) -> Iterable[int]:
    return (row for path in out.glob("part-*") for row in pq.read_table(path)["n"].to_pylist())


def in_sqlite(out: Path) -> Iterable[int]:
    with closing(sqlite3.connect(out)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM numbers")]


KINDS = {
    "text": Kind(lambda out: FilesSink.text(out, to_text=lambda r: str(r["n"])), in_text),
    "text-going-on": Kind(
        lambda out: FilesSink.text(out, to_text=lambda r: str(r["n"]), roll_on_checkpoint=False), in_text
    ),
    "parquet": Kind(lambda out: FilesSink.parquet(out), in_parquet),
    "sqlite": Kind(lambda out: SqlSink(str(out), "numbers", ["n"]), in_sqlite),
    "sqlite-idempotent": Kind(lambda out: SqlSink(str(out), "numbers", ["n"], key=["n"]), in_sqlite),
}


class Query:
    """Does what Spark does with a streaming query: a batch is brought again until it is noted as done."""

    def __init__(self, stream: StreamOfBatches) -> None:
        self.stream = stream
        self.done = 0

    def run(self) -> None:
        """From where it is to the end, or until something breaks."""
        while self.done < BATCHES:
            self.batch(self.done)
            self.done += 1

    def batch(self, batch: int) -> None:
        written: list[Written | None] = []
        try:
            for subtask in range(TASKS):
                rows = rows_of(batch, subtask)
                written.append(self.stream.write(batch, subtask, [Batch(rows[:4]), Batch(rows[4:])]))
            self.stream.commit(batch, written)
        except InjectedError:
            self.stream.abort(batch)  # that is what Spark does, if it is still there
            raise


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def stream(place: Path, sink: Sink[Any], storage: CheckpointStorage | None = None) -> StreamOfBatches:
    return StreamOfBatches(sink, QUERY, CommitLog(storage or storage_at(place / "commits")))


def check(kind: Kind, out: Path) -> None:
    assert Counter(kind.numbers(out)) == EVERYTHING
    if out.is_dir():
        assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


# ---- streams ------------------------------------------------------------------------------------------------


def test_each_batch_is_seen_when_it_is_committed_and_not_before(kind: Kind, tmp_path: Path) -> None:
    out, sink = tmp_path / "out", kind.make(tmp_path / "out")
    job = stream(tmp_path, sink)
    written = [job.write(0, subtask, [Batch(rows_of(0, subtask))]) for subtask in range(TASKS)]
    if "idempotent" not in str(sink.guarantee).lower():
        assert list(kind.numbers(out)) == []
    job.commit(0, written)
    assert sorted(kind.numbers(out)) == list(range(TASKS * 10))
    query = Query(job)
    query.done = 1
    query.run()
    check(kind, out)


@pytest.mark.parametrize("moment", ["before the record", "after the record"])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_driver_killed_around_the_record_leaves_one_output(
    kind: Kind, tmp_path: Path, moment: str, batch: int
) -> None:
    out = tmp_path / "out"
    storage = DyingStorage(storage_at(tmp_path / "commits"), moment, batch)
    query = Query(stream(tmp_path, kind.make(out), storage))
    with pytest.raises(Killed):
        query.run()
    again = Query(stream(tmp_path, kind.make(out)))
    again.done = query.done
    again.run()
    check(kind, out)


@pytest.mark.parametrize("moment", [*BreakingSink.MOMENTS[:4], *BreakingSink.MOMENTS[7:]])
def test_a_sink_that_breaks_at_any_moment_leaves_one_output(kind: Kind, tmp_path: Path, moment: str) -> None:
    out, marks = tmp_path / "out", tmp_path / "marks"
    marks.mkdir()
    breaking = BreakingSink(kind.make(out), marks, moment, after=0)
    query = Query(stream(tmp_path, breaking))
    broken = 0
    while query.done < BATCHES:
        with suppress(InjectedError):
            query.run()
        broken += query.done < BATCHES
        assert broken <= 1
    two_phases = moment in BreakingSink.MOMENTS[3:]
    if not (two_phases and "idempotent" in str(breaking.guarantee).lower()):
        assert broken == 1
    check(kind, out)


def test_a_batch_that_comes_again_after_its_commit_is_not_written(kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out"
    query = Query(stream(tmp_path, kind.make(out)))
    query.run()
    taken = []

    def rows() -> Iterator[Batch[Any]]:
        taken.append(1)
        yield Batch(rows_of(BATCHES - 1, 0))
        taken.append(2)

    again = stream(tmp_path, kind.make(out))
    assert again.write(BATCHES - 1, 0, rows()) is None
    assert taken == [1, 2]  # what is computed on the way has been
    again.commit(BATCHES - 1, [None] * TASKS)
    check(kind, out)


def test_what_was_committed_before_the_newest_batch_is_left_alone(tmp_path: Path) -> None:
    """It is done with, and who it was for may have taken it away."""
    kind, out = KINDS["sqlite"], tmp_path / "out"
    query = Query(stream(tmp_path, kind.make(out)))
    query.run()
    with closing(sqlite3.connect(out)) as connection:
        connection.execute("DELETE FROM sluiceway_commits")
        connection.commit()
    query.stream.commit(0, [None] * TASKS)
    query.stream.abort(0)
    with pytest.raises(ConnectorError, match="knows nothing of"):
        query.stream.commit(BATCHES - 1, [None] * TASKS)


def test_what_a_task_has_written_a_second_time_is_dropped(kind: Kind, tmp_path: Path) -> None:
    """Two attempts of a batch, of which the one that is noted counts."""
    out = tmp_path / "out"
    first, second = (stream(tmp_path, kind.make(out)) for _ in range(2))
    for batch in range(BATCHES):
        written = [first.write(batch, s, [Batch(rows_of(batch, s))]) for s in range(TASKS)]
        if batch == BATCHES - 1:
            late = second.write(batch, TASKS, [Batch([{"n": n} for n in range(3)])])
        first.commit(batch, written)
    second.commit(BATCHES - 1, [late])
    if "idempotent" in str(kind.make(out).guarantee).lower():
        assert set(kind.numbers(out)) == set(EVERYTHING)
    else:
        check(kind, out)


def test_commits_of_another_query_are_refused(tmp_path: Path) -> None:
    sink = KINDS["text"].make(tmp_path / "out")
    Query(stream(tmp_path, sink)).run()
    other = StreamOfBatches(sink, "another", CommitLog(storage_at(tmp_path / "commits")))
    with pytest.raises(
        ConfigurationError, match=r"the commits of another query \(the-query; this one is another\)"
    ):
        other.write(0, 0, [Batch(rows_of(0, 0))])
    with pytest.raises(ConfigurationError, match="directory of its own"):
        other.commit(7, [])


def test_a_sink_that_commits_needs_a_place_to_note_that(tmp_path: Path) -> None:
    job = StreamOfBatches(KINDS["text"].make(tmp_path / "out"), QUERY, None)
    with pytest.raises(
        ConfigurationError, match="commits what it has written, and there is no place to note that"
    ):
        job.write(0, 0, [Batch(rows_of(0, 0))])


def test_without_two_phases_and_without_records_batches_are_written_as_they_come(tmp_path: Path) -> None:
    got: list[Any] = []
    job = StreamOfBatches(CallbackSink(got.append), QUERY, None)
    for _ in range(2):
        job.commit(0, [job.write(0, 0, [Batch([1, 2], [5, 6])])])
    assert got == [1, 2, 1, 2]
    got.clear()
    noted = stream(tmp_path, CallbackSink(got.append))
    for _ in range(2):
        noted.commit(0, [noted.write(0, 0, [Batch([1, 2])])])
    assert got == [1, 2]


# ---- a DataFrame --------------------------------------------------------------------------------------------


def test_a_dataframe_is_written_beside_what_is_there_and_seen_at_once(kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for batch in range(BATCHES):
        job = SingleBatch(kind.make(out), f"job {batch}")
        job.write(0, [Batch(rows_of(batch, 0))])  # a task that was lost, and is tried again
        written = [job.write(s, [Batch(rows_of(batch, s))]) for s in range(TASKS)]
        job.commit(written)
        job.commit(written)
    check(kind, out)


def test_a_dataframe_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("text", "sqlite"):
        kind, out = KINDS[name], tmp_path / name
        job = SingleBatch(kind.make(out), "job")
        job.write(1, [Batch(rows_of(0, 1))])
        job.abort()
        assert list(kind.numbers(out)) == []
        assert not out.is_dir() or list(out.iterdir()) == []


# ---- writers ------------------------------------------------------------------------------------------------


class Slow(Sink[int]):
    """Its writer takes one batch at a time, and hands it on in a thread of its own."""

    def __init__(self, got: list[int]) -> None:
        self.got = got

    @property
    def max_writers(self) -> int | None:
        return 2

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return _SlowWriter(self.got, context)


class _SlowWriter(CommittingSinkWriter[int]):
    def __init__(self, got: list[int], context: WriterContext) -> None:
        self._got, self._wake = got, context.wake
        self._thread: threading.Thread | None = None
        self._taken: list[int] = []
        self._gate = threading.Event()

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        assert self.blocked() is None
        given = list(values)
        self._gate.clear()
        self._thread = threading.Thread(target=self._hand_on, args=(given,))
        self._thread.start()

    def _hand_on(self, values: list[int]) -> None:
        self._gate.wait()
        self._taken += values
        self._thread = None
        self._wake()

    def blocked(self) -> Wait | None:
        waiting = self._thread is not None
        self._gate.set()
        return Wait() if waiting else None

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        assert self.blocked() is None
        return [(checkpoint_id, self._taken)]

    def commit(self, committables: Sequence[Any]) -> None:
        for _, values in committables:
            self._got.extend(values)


def test_writers_that_can_take_no_more_are_waited_for(tmp_path: Path) -> None:
    got: list[int] = []
    job = stream(tmp_path, Slow(got))
    written = job.write(6, 1, [Batch([1]), Batch([2, 3])])
    assert written is not None
    assert (written.subtask, written.records, written.committables) == (1, 3, ((7, [1, 2, 3]),))
    job.commit(6, [written])
    assert got == [1, 2, 3]


def test_a_sink_with_few_writers_says_how_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"takes at most 2 writers, .*coalesce\(2\)"):
        stream(tmp_path, Slow([])).write(0, 2, [])


class Counting(Sink[int]):
    """Its writers know how many records they have ever had, and all of them which is the largest."""

    def __init__(self, got: list[Any], *, twice: bool = False) -> None:
        self.got, self.twice = got, twice

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return _CountingWriter(self, context.subtask)


class _CountingWriter(SinkWriter[int], CheckpointedFunction):
    _own: ListState[int]
    _all: ListState[int]

    def __init__(self, sink: Counting, subtask: int) -> None:
        self._sink, self._subtask = sink, subtask

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self._own = store.get_list_state(ListStateDescriptor("own"))
        self._all = store.get_union_list_state(ListStateDescriptor("all"))
        if self._sink.twice:
            store.get_list_state(ListStateDescriptor("all"))
        self._count = sum(self._own.get())
        self._largest = max(self._all.get(), default=0)
        self._is_restored = context.is_restored

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        self._count += len(values)
        self._sink.got.append((self._subtask, self._is_restored, self._count, self._largest))
        self._largest = max(self._largest, *values)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._own.update([self._count])
        self._all.update([self._largest])


def test_state_of_writers_goes_on_with_the_next_batch_and_not_with_one_that_failed(tmp_path: Path) -> None:
    got: list[Any] = []
    job = stream(tmp_path, Counting(got))
    job.commit(0, [job.write(0, s, [Batch([s + 1] * 2)]) for s in range(2)])
    assert got == [(0, False, 2, 0), (1, False, 2, 0)]
    job.write(1, 0, [Batch([9])])
    job.abort(1)
    got.clear()
    job.commit(1, [job.write(1, 0, [Batch([5])])])
    assert got == [(0, True, 3, 2)]
    got.clear()
    job.commit(2, [job.write(2, s, [Batch([1])]) for s in range(3)])
    # The second had no part in the batch before; the third is new.
    assert got == [(0, True, 4, 5), (1, True, 3, 5), (2, True, 1, 5)]


def test_state_that_is_asked_for_in_two_ways_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"'all'.* is declared twice"):
        stream(tmp_path, Counting([], twice=True)).write(0, 0, [])


# ---- records ------------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_written_and_old_ones_go(tmp_path: Path) -> None:
    log = CommitLog(storage_at(tmp_path))
    assert log.newest() is None
    assert log.read(3) is None
    for batch in range(25):
        log.write(CommitRecord(batch, QUERY, {"kept": "k" * 100_000}), [batch, "ready" * 1000])
    newest = log.newest()
    assert newest == CommitRecord(24, QUERY, {"kept": "k" * 100_000})
    assert log.ready(24) == [24, "ready" * 1000]
    assert sorted(int(path.name) for path in (tmp_path / "commits").iterdir()) == list(range(15, 25))
    (tmp_path / "commits" / ".20.partial").touch()
    assert log.newest() == newest


@pytest.mark.parametrize("at", [0, 20, 40, 100, -1])
def test_damaged_records_are_not_taken_for_none(tmp_path: Path, at: int) -> None:
    log = CommitLog(storage_at(tmp_path))
    log.write(CommitRecord(0, QUERY, "k" * 50), ["ready" * 20])
    path = tmp_path / "commits" / "0"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)

    def read() -> None:
        log.read(0)
        log.ready(0)

    with pytest.raises(CheckpointError, match="commits/0 is no record of a commit, or it is damaged"):
        read()
    path.write_bytes(b"sluiceway commit 1\n")
    with pytest.raises(CheckpointError, match="damaged"):
        log.newest()
