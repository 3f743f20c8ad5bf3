"""Execution of one stream whose records return to the calling program."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from sluiceway.api.job_thread import start_job_thread
from sluiceway.api.location import caller_location
from sluiceway.api.program import Program
from sluiceway.config.settings import Settings
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.engine import Job, JobStatus
from sluiceway.errors import JobCancelledError
from sluiceway.graph import InputRef, Transformation, build_stream_graph, upstream_of
from sluiceway.steps import SinkStep
from sluiceway.util.overriding import override

__all__ = ["CloseableIterator", "collect_from", "for_a_look"]

T = TypeVar("T")

_WAITING: Final = 4096
"""Records that may wait for the consumer before the job has to."""

_UNTIL_WOKEN: Final = Wait()


class CloseableIterator(Iterator[T], Generic[T]):
    """The records of a stream, as a job that runs beside makes them; what ``execute_and_collect()`` returns.

    The job runs in a thread of its own and waits when a few thousand records have not been taken. As a context
    manager it is closed at the end of the block; one that is forgotten is closed when it is collected.
    """

    def __init__(self, job: Job, name: str, exchange: _Exchange) -> None:
        self._job = job
        self._name = name
        self._exchange = exchange
        self._at_hand: Iterator[T] = iter(())
        self._fetched = 0
        self._cut_short = False
        self._thread = start_job_thread(job, partial(_run, job, exchange), name)

    @property
    def job(self) -> Job:
        """The job, to ask for its status and its metrics."""
        return self._job

    def __iter__(self) -> CloseableIterator[T]:
        return self

    def __next__(self) -> T:
        """Return the next record, as soon as it is there.

        Raises:
            StopIteration: the job has come to its end.
            JobCancelledError: it was cancelled or closed before that, so that records are missing.
            BaseException: what made the job fail.
        """
        # From what was taken at once, so that the lock is taken once for many records.
        for value in self._at_hand:
            return value
        values = self._exchange.take()
        if values:
            self._fetched += len(values)
            self._at_hand = iter(values)
            return next(self._at_hand)
        self._thread.join()
        if self._exchange.failure is not None:
            raise self._exchange.failure
        if self._cut_short or self._job.status is JobStatus.CANCELED:
            given = f"{self._fetched} record{'' if self._fetched == 1 else 's'}"
            raise JobCancelledError(
                f"job {self._name!r} was cancelled after it had given {given}: its results are not complete"
            )
        raise StopIteration

    def close(self) -> None:
        """Cancel the job and wait until it has ended; harmless a second time. What it fails with is not raised."""
        # Records that were taken and not given out are missing as well.
        left = len(list(self._at_hand))
        self._fetched -= left
        self._cut_short = self._exchange.close() or left > 0 or self._cut_short
        self._job.cancel()
        self._thread.join()

    def __enter__(self) -> CloseableIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without waiting: this may be any thread.
        exchange = getattr(self, "_exchange", None)
        if exchange is not None and not exchange.ended:
            exchange.close()
            self._job.cancel()

    def __repr__(self) -> str:
        return f"<CloseableIterator of {self._name!r}: {self._job.status.value}>"


def _run(job: Job, exchange: _Exchange) -> None:
    from sluiceway.api.tracebacks import without_engine_frames

    failure: BaseException | None = None
    try:
        job.run()
    except BaseException as error:
        failure = without_engine_frames(error)
    exchange.end(failure)


def for_a_look(settings: Settings, *, checkpoints: bool) -> Settings:
    """Return the options of a run that neither resumes nor leaves checkpoints in the place of its job.

    The job would resume from the last one, as if it had done what only a part of it has done.

    Args:
        settings: the options, of which those that are configured are for the job.
        checkpoints: whether a place of checkpoints was given for this run.
    """
    if checkpoints or settings.checkpoints is None:
        return replace(settings, resume=False)
    look = replace(settings, checkpoints=None, resume=False, local_recovery_bytes=0)
    if settings.engine == "local" or settings.hosted:
        return look
    # Without a place a bounded stream is one batch job there, which takes no checkpoints and no restarts.
    default = Settings()
    return replace(look, checkpoint_interval_ms=default.checkpoint_interval_ms, restart=default.restart)


def collect_from(
    program: Program,
    inputs: Sequence[InputRef],
    settings: Settings,
    job_name: str | None = None,
    waiting: int = _WAITING,
) -> CloseableIterator[Any]:
    """Run the steps that one stream is made of, and nothing else of its program.

    Args:
        program: the program.
        inputs: the outputs of steps that the stream consists of.
        settings: the options of the run.
        job_name: None: the pipeline's name.
        waiting: records that may wait for the consumer before the job has to.

    Raises:
        GraphError: the program cannot become a job.
    """
    from sluiceway.api.submission import prepare
    from sluiceway.plugins import default_manager

    program._looked_at |= upstream_of(ref.upstream for ref in inputs)
    exchange = _Exchange(waiting)
    end = Transformation(SinkStep(_ExchangeSink(exchange)), list(inputs), location=caller_location())
    effective = program._effective(settings)
    name = job_name or program.name
    graph = build_stream_graph(name, [end], effective, max_parallelism=program._max_parallelism)
    manager = default_manager()
    job = prepare(manager.engine(settings.engine), graph, effective, manager.services())
    return CloseableIterator(job, name, exchange)


class _Exchange(ProcessLocal):
    """Records on their way from the sink to the consumer, who is in another thread."""

    what = "execute_and_collect()"
    gathers = True

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self.ended = False
        self.full = False
        self._limit = limit
        self._changed = threading.Condition()
        self._values: deque[Any] = deque()
        self._closed = False
        self.writers: list[WriterContext] = []
        self._wanted: list[Callable[[], None]] = []

    def put(self, values: Sequence[Any]) -> None:
        """From the sink."""
        with self._changed:
            if self._closed:
                return
            self._values.extend(values)
            self.full = len(self._values) >= self._limit
            self._changed.notify_all()

    _extend = put

    def when_wanted(self, action: Callable[[], None]) -> None:
        """From the job manager: there is room again."""
        with self._changed:
            if self.full:
                self._wanted.append(action)
                return
        action()

    def end(self, failure: BaseException | None) -> None:
        """Record that the job has ended."""
        with self._changed:
            self.failure = failure
            self.ended = True
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Return everything that is there, once there is something; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._values or self.ended or self._closed)
            values = list(self._values)
            self._values.clear()
            was_full, self.full = self.full, False
            wanted, self._wanted = self._wanted, []
        # Outside the lock, as these call into the job.
        for action in wanted:
            action()
        if was_full:
            for context in list(self.writers):
                context.wake()
        return values

    def close(self) -> bool:
        """Nobody wants more; whether there was, or would have been."""
        with self._changed:
            missing = bool(self._values) or not self.ended
            self._closed = True
            self._values.clear()
            self._changed.notify_all()
        return missing


class _ExchangeSink(Sink[Any]):
    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    @property
    @override
    def name(self) -> str:
        return "execute_and_collect"

    @property
    def follows_input(self) -> bool:
        """Always: a stream of one subtask keeps its order."""
        return True

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make a writer to the exchange."""
        return _ExchangeWriter(self._exchange, context)


class _ExchangeWriter(SinkWriter[Any]):
    def __init__(self, exchange: _Exchange, context: WriterContext) -> None:
        self._exchange = exchange
        self._context = context

    def open(self) -> None:
        self._exchange.writers.append(self._context)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._exchange.put(values)

    def blocked(self) -> Wait | None:
        return _UNTIL_WOKEN if self._exchange.full else None

    def close(self) -> None:
        self._exchange.writers = [c for c in self._exchange.writers if c is not self._context]
