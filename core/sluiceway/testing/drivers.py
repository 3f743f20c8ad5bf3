"""Sources and sinks without a job: drivers that call them as the runtime does, and look at every answer.

Nothing here sleeps where it can wait: a source or sink that says what it waits for is asked again when that
has come. One that waits for nothing that comes fails with what it said.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from sluiceway.api.arguments import check_count
from sluiceway.clock import Clock, SystemClock
from sluiceway.connector import (
    END_OF_INPUT,
    CommittingSinkWriter,
    Reader,
    ReaderContext,
    Sink,
    SinkWriter,
    Source,
    Wait,
    WriterContext,
)
from sluiceway.elements import Batch
from sluiceway.metrics import MetricGroup
from sluiceway.runtime.source.enumerator_driver import EnumeratorDriver
from sluiceway.testing._waits import Waker, wait_for
from sluiceway.testing.programs import check_connector, event_time

__all__ = ["SinkDriver", "SourceDriver", "SourceSnapshot", "drive_sink", "drive_source"]


@dataclass(frozen=True)
class SourceSnapshot:
    """Position of a source, as in a checkpoint.

    Attributes:
        enumerator: what the enumerator's snapshot gave, pickled.
        readers: what each reader's snapshot gave, pickled.
    """

    enumerator: bytes
    readers: tuple[bytes, ...]

    def splits(self) -> list[list[Any]]:
        """Splits of each reader."""
        return [pickle.loads(reader) for reader in self.readers]


class _Enumerating(EnumeratorDriver):
    """Enumerator whose splits are pickled on their way to the readers of a :class:`SourceDriver`."""

    def __init__(self, driver: SourceDriver, restored: Any) -> None:
        super().__init__(driver.source, driver.parallelism, driver.clock, restored=restored)
        self._driver = driver

    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        given = pickle.dumps(list(splits))
        self._driver._post(reader, lambda r: r.add_splits(pickle.loads(given)))

    def deliver_end(self, reader: int) -> None:
        self._driver._post(reader, lambda r: r.no_more_splits())

    def send_event(self, reader: int, event: Any) -> None:
        sent = pickle.dumps(event)
        self._driver._post(reader, lambda r: r.handle_event(pickle.loads(sent)))

    def wake(self, after_s: float = 0.0) -> None:
        self._driver._run_at.append(self._driver.clock.monotonic() + after_s)
        self._driver._waker.wake(-1)


class SourceDriver:
    """Driver of the enumerator and the readers of one source in the calling thread.

    A context manager; leaving it closes everything. Splits are pickled on their way, lists that a reader has
    given away are emptied.

    Args:
        source: what to run.
        parallelism: number of readers.
        limit: what readers are told when polled.
        clock: None: the system's. A virtual one goes on by itself when everybody waits for it.
        restored: where to begin; its splits are dealt out to the readers in turn.

    Attributes:
        records: what each reader has given so far.
        timestamps: the event times that came with batches, per reader.
        largest: the most records in one poll.
        splits: the splits that the readers say their records are from.
        finished: those of them that were read to their end, as the readers say.
        metrics: the metrics of each reader.
        rejected: the records that readers could not decode, each with its exception and its event time or None.

    Raises:
        AssertionError: the source breaks its contract, or waits for what does not come.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int = 1,
        *,
        limit: int = 100,
        clock: Clock | None = None,
        restored: SourceSnapshot | None = None,
    ) -> None:
        check_connector("a SourceDriver", Source, source)
        check_count("the parallelism of a SourceDriver", parallelism)
        check_count("the limit of a SourceDriver", limit)
        if restored is not None and not isinstance(restored, SourceSnapshot):
            raise TypeError(
                "a SourceDriver is restored from what snapshot() of one has returned, and was given "
                f"{restored!r:.100} ({type(restored).__name__})"
            )
        self.source = source
        self.parallelism = parallelism
        self.limit = limit
        self.clock: Clock = SystemClock() if clock is None else clock
        self.records: list[list[Any]] = [[] for _ in range(parallelism)]
        self.timestamps: list[list[int]] = [[] for _ in range(parallelism)]
        self.metrics = [MetricGroup() for _ in range(parallelism)]
        self.largest = 0
        self.rejected: list[tuple[Any, Exception, int | None]] = []
        self.splits: set[str] = set()
        self.finished: set[str] = set()
        self._waker = Waker()
        self._run_at: deque[float] = deque()
        self._mail: deque[Callable[[], None]] = deque()
        self._waits: list[Wait | None] = [None] * parallelism
        self._ended = [False] * parallelism
        self._turn = 0
        self._closed = False
        self._readers: list[Reader[Any] | None] = [None] * parallelism
        self._given_away: list[list[Any]] = [[] for _ in range(parallelism)]  # the last of each reader, emptied
        state = None if restored is None else pickle.loads(restored.enumerator)
        self._driver = _Enumerating(self, state)
        try:
            self._driver.start()
            for index in range(parallelism):
                self._bring_up(index)
            if restored is not None:
                for number, split in enumerate(s for splits in restored.splits() for s in splits):
                    self._reader(number % parallelism).add_splits([split])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SourceDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def poll(self) -> bool:
        """Go on until one reader has given records. False if all have ended."""
        while True:
            self._deliver()
            if all(self._ended):
                return False
            index = self._next()
            if index is None:
                self._sleep()
                continue
            reader = self._reader(index)
            result = reader.poll(self.limit)
            self.rejected += reader.rejected()
            self.finished.update(reader.finished_splits())
            if result is END_OF_INPUT:
                self._ended[index] = True
            elif isinstance(result, Wait):
                self._waits[index] = result
            else:
                if reader.current_split_id is not None:
                    self.splits.add(reader.current_split_id)
                self._take(index, result)
                return True

    def run(self, most: int | None = None) -> list[Any]:
        """Go on until all readers have ended, or ``most`` records have come; all records so far."""
        while most is None or sum(map(len, self.records)) < most:
            if not self.poll():
                break
        return self.all_records()

    def all_records(self) -> list[Any]:
        """Return the records so far, reader by reader."""
        return [record for records in self.records for record in records]

    def snapshot(self) -> SourceSnapshot:
        """Return a snapshot of enumerator and readers."""
        self._deliver()
        readers = [pickle.dumps(self._reader(i).snapshot()) for i in range(self.parallelism)]
        splits = [split for reader in readers for split in pickle.loads(reader)]
        names = [split.split_id for split in splits]
        assert all(isinstance(name, str) for name in names), f"split_id must be a str: {names}"
        assert len(set(names)) == len(names), f"two splits of one source have the same split_id: {names}"
        return SourceSnapshot(pickle.dumps(self._driver.snapshot()), tuple(readers))

    def fail_reader(self, index: int) -> None:
        """Close one reader as after a failure, give its splits back and bring up another in its place."""
        self._deliver()
        splits = pickle.loads(pickle.dumps(self._reader(index).snapshot()))
        self._close_reader(index)
        self._driver.add_splits_back(splits, index)
        self._bring_up(index)

    def close(self) -> None:
        """Close readers and enumerator. Harmless a second time."""
        if self._closed:
            return
        self._closed = True
        errors: list[Exception] = []
        for close in (
            *(lambda i=i: self._close_reader(i) for i in range(self.parallelism)),
            self._driver.close,
        ):
            try:
                close()
            except Exception as error:
                errors.append(error)
        self._waker.close()
        if errors:
            raise errors[0]

    # ---- inside --------------------------------------------------------------------------------------------

    def _bring_up(self, index: int) -> None:
        reader = self.source.create_reader(
            ReaderContext(
                subtask=index,
                parallelism=self.parallelism,
                clock=self.clock,
                wake=lambda: self._waker.wake(index),
                request_split=lambda: self._mail.append(lambda: self._driver.request(index)),
                metrics=self.metrics[index],
                send_event=lambda event: self._send_event(index, reader, event),
            )
        )
        self._readers[index] = reader
        # The splits may be what it has waited for.
        self._waits[index] = None
        self._ended[index] = False
        self._driver.add_reader(index)
        reader.start()

    def _send_event(self, index: int, reader: Reader[Any], event: Any) -> None:
        sent = pickle.dumps(event)

        def deliver() -> None:
            if self._readers[index] is reader:  # one that has failed says nothing of the next
                self._driver.event_received(index, pickle.loads(sent))

        self._mail.append(deliver)

    def _reader(self, index: int) -> Reader[Any]:
        reader = self._readers[index]
        assert reader is not None, "the readers are closed"
        return reader

    def _close_reader(self, index: int) -> None:
        reader, self._readers[index] = self._readers[index], None
        if reader is not None:
            reader.close()

    def _post(self, index: int, call: Callable[[Reader[Any]], None]) -> None:
        def deliver() -> None:
            assert not self._ended[index], f"reader {index} has ended, and the enumerator has something to tell it"
            self._waits[index] = None
            call(self._reader(index))

        self._mail.append(deliver)

    def _deliver(self) -> None:
        now = self.clock.monotonic()
        if any(at <= now for at in self._run_at):
            self._run_at = deque(at for at in self._run_at if at > now)
            self._driver.run()
        while self._mail:
            self._mail.popleft()()

    def _next(self) -> int | None:
        for offset in range(self.parallelism):
            index = (self._turn + offset) % self.parallelism
            if not self._ended[index] and self._waits[index] is None:
                self._turn = index + 1
                return index
        return None

    def _sleep(self) -> None:
        waiting = [i for i in range(self.parallelism) if not self._ended[i]]
        waits = [w for w in (self._waits[i] for i in waiting) if w is not None]
        over = wait_for(waits, self._waker, self.clock, min(self._run_at, default=None))
        woken = self._waker.taken()
        for index, is_over in zip(waiting, over, strict=True):
            if is_over or index in woken:
                self._waits[index] = None

    def _take(self, index: int, result: list[Any] | Batch[Any]) -> None:
        assert isinstance(result, (list, Batch)), f"poll() returned {type(result).__name__}"
        values = result.values if isinstance(result, Batch) else result
        assert isinstance(values, list), f"the values of a batch must be a list, not {type(values).__name__}"
        assert values, "poll() returned no records; it must say what to wait for"
        assert not self._given_away[index], (
            "poll() has filled a list again that it had given away: return a new one"
        )
        self.largest = max(self.largest, len(values))
        self.records[index] += values
        if isinstance(result, Batch) and result.timestamps is not None:
            assert len(result.timestamps) == len(values), "as many timestamps as values are needed"
            self.timestamps[index] += map(event_time, result.timestamps)
            result.timestamps.clear()
        # A reader that goes on using what it has given away is found out: here, or by the next poll.
        values.clear()
        self._given_away[index] = values


def drive_source(
    source: Source[Any], parallelism: int = 1, *, limit: int = 100, clock: Clock | None = None
) -> list[Any]:
    """Return all records of a bounded source, by reader. See :class:`SourceDriver`."""
    with SourceDriver(source, parallelism, limit=limit, clock=clock) as driver:
        return driver.run()


class SinkDriver:
    """Driver of the writers of one sink in the calling thread.

    A context manager; leaving it closes the writers, as after a failure unless :meth:`finish` was called. The
    lists that a writer was given are changed afterwards.

    Args:
        sink: what to run.
        parallelism: number of writers.
        clock: None: the system's. A virtual one goes on by itself when a writer waits for it.
        checkpoints: whether the job takes checkpoints: those of :meth:`checkpoint` and :meth:`complete`.
        restored: what :meth:`checkpoint` has returned, of a driver whose job this one goes on with.

    Attributes:
        metrics: the metrics of each writer.
        waited: how often a writer was found blocked.

    Raises:
        AssertionError: the sink breaks its contract, or waits for what does not come.
    """

    def __init__(
        self,
        sink: Sink[Any],
        parallelism: int = 1,
        *,
        clock: Clock | None = None,
        checkpoints: bool = False,
        restored: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        check_connector("a SinkDriver", Sink, sink)
        check_count("the parallelism of a SinkDriver", parallelism)
        self.parallelism = parallelism
        self.clock: Clock = SystemClock() if clock is None else clock
        self._checkpoints = checkpoints
        self._last_checkpoint = 0
        self._ready: list[list[list[Any]]] = [[] for _ in range(parallelism)]  # by writer and checkpoint
        self.metrics = [MetricGroup() for _ in range(parallelism)]
        self.waited = 0
        self._waker = Waker()
        self._writers: list[SinkWriter[Any] | None] = []
        try:
            for index in range(parallelism):
                context = WriterContext(
                    subtask=index,
                    parallelism=parallelism,
                    clock=self.clock,
                    wake=self._wake_for(index),
                    metrics=self.metrics[index],
                    job_name="driven",
                    uid="sink",
                    has_checkpoints=checkpoints,
                    is_restored=restored is not None,
                )
                self._writers.append(sink.create_writer(context))
            for index, writer in enumerate(self._writers):
                assert writer is not None
                writer.open()
                if isinstance(writer, CommittingSinkWriter):
                    # Dealt out in turn, as after a change of parallelism.
                    earlier = (restored or [])[index::parallelism]
                    writer.recover(pickle.loads(pickle.dumps([c for some in earlier for c in some])))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SinkDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None = None, subtask: int = 0) -> None:
        """Write as soon as the writer lets it."""
        self.wait(subtask)
        given, stamps = list(values), None if timestamps is None else list(timestamps)
        if stamps is not None and len(stamps) != len(given):
            raise ValueError(f"{len(given)} records were given with {len(stamps)} timestamps: each needs one")
        self.writer(subtask).write(given, stamps)
        # A writer that has kept the list instead of its records is found out.
        given.clear()
        if stamps is not None:
            stamps.clear()

    def wait(self, subtask: int = 0) -> None:
        """Wait until the writer is not blocked."""
        while (wait := self.writer(subtask).blocked()) is not None:
            assert isinstance(wait, Wait), f"blocked() returned {type(wait).__name__}"
            self.waited += 1
            wait_for([wait], self._waker, self.clock)
            self._waker.taken()

    def flush(self, subtask: int = 0) -> None:
        """Flush, and wait until everything has gone."""
        self.wait(subtask)
        self.writer(subtask).flush()
        self.wait(subtask)

    def checkpoint(self) -> list[list[Any]]:
        """Take one: flush, and have everything made ready that was written.

        Returns:
            what it keeps of each writer, that of earlier ones included which are not complete.
        """
        assert self._checkpoints, "SinkDriver(checkpoints=True) takes checkpoints"
        self._last_checkpoint += 1
        for subtask in range(self.parallelism):
            self.flush(subtask)
            self._prepare(subtask)
        return [[c for some in ready for c in some] for ready in self._ready]

    def complete(self) -> None:
        """Complete the last checkpoint: commit its committables."""
        for subtask in range(self.parallelism):
            self._commit(subtask)

    def finish(self) -> None:
        """End all inputs, wait until everything has gone. With checkpoints, take the last and complete it."""
        for subtask in range(self.parallelism):
            self.wait(subtask)
            self.writer(subtask).finish()
            self.wait(subtask)
            if not self._checkpoints:
                self._prepare(subtask)
                self._commit(subtask)
        if self._checkpoints:
            self.checkpoint()
            self.complete()

    def close(self) -> None:
        """Close the writers. Harmless a second time."""
        errors: list[Exception] = []
        for index, writer in enumerate(self._writers):
            self._writers[index] = None
            try:
                if writer is not None:
                    writer.close()
            except Exception as error:
                errors.append(error)
        self._waker.close()
        if errors:
            raise errors[0]

    def writer(self, subtask: int = 0) -> SinkWriter[Any]:
        """Return the writer of one subtask."""
        writer = self._writers[subtask]
        assert writer is not None, "the writers are closed"
        return writer

    def _prepare(self, subtask: int) -> None:
        writer = self.writer(subtask)
        if isinstance(writer, CommittingSinkWriter):
            self._ready[subtask].append(writer.prepare_commit(self._last_checkpoint))

    def _commit(self, subtask: int) -> None:
        ready, self._ready[subtask] = self._ready[subtask], []
        committables = [c for some in ready for c in some]
        writer = self.writer(subtask)
        if committables and isinstance(writer, CommittingSinkWriter):
            writer.commit(pickle.loads(pickle.dumps(committables)))

    def _wake_for(self, index: int) -> Callable[[], None]:
        return lambda: self._waker.wake(index)


def drive_sink(sink: Sink[Any], records: Sequence[Any], parallelism: int = 1, *, batch_size: int = 100) -> None:
    """Write all records, batch by batch to the writers in turn, and end as a job does at the end of its input."""
    check_count("the batch_size of drive_sink()", batch_size)
    with SinkDriver(sink, parallelism) as driver:
        for number, batch in enumerate(_batches(records, batch_size)):
            driver.write(batch, subtask=number % parallelism)
        driver.finish()


def _batches(records: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]
