"""Query of Structured Streaming, from its start to its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sluiceway.engine import Services
from sluiceway.errors import ConnectorError, JobCancelledError
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.run_directory import Run
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.util.raising import raise_again
from sluiceway_spark.structured.callback_failures import in_short
from sluiceway_spark.structured.job_texts import job_text, steps_text
from sluiceway_spark.structured.microbatch.control_files import write_due
from sluiceway_spark.structured.microbatch.last_positions import publish_last_positions
from sluiceway_spark.structured.microbatch.metrics import StreamFigures
from sluiceway_spark.structured.microbatch.progress import QueryProgress
from sluiceway_spark.structured.query_settings import for_spark
from sluiceway_spark.structured.stages.batch_tasks import ship
from sluiceway_spark.structured.stages.chained_sinks import chained_sinks
from sluiceway_spark.structured.stages.driver_sinks import in_this_process, refuse_speculation
from sluiceway_spark.structured.stages.sink_stage import SinkStage
from sluiceway_spark.structured.stages.stage_builder import stream_rows
from sluiceway_spark.structured.stages.stateful_stage import NOW_MS, SINKS_AFTER

__all__ = ["StreamQuery"]

_log: Final = logging.getLogger("sluiceway_spark")

LIMITS: Final = BatchLimits(records=500_000)
"""Size of a micro-batch: its own price is most of a second, so that a backlog wants large ones."""

_LOOK_S: Final = 0.1
_COMMITTED_S: Final = 10.0

_NO_PROCESS: Final = "Python worker failed to connect back"
"""Part of Spark's message if a Python process does not start within 10 s, which no setting changes."""

_STARTS: Final = 6
"""Starts of a query that fails for that reason: a busy machine takes longer at times."""


class StreamQuery:
    """Runner of queries over the directory of one run.

    Args:
        session: for queries of this run alone.
        plan: the job.
        run: of the directory.
        location: the directory, as a path or URL.
        services: what plugins give.
        slots: how many tasks run at a time.
        interval_ms: from the beginning of a micro-batch to that of the next; 0: as soon as possible.
        figures: told of each micro-batch.
        progress: of the queries, for those who watch.
        cancelled: set when it is to stop at once.
        pausing: set when it is to stop behind a micro-batch.
    """

    def __init__(
        self,
        session: Any,
        plan: SteppedPlan,
        run: Run,
        location: str,
        services: Services,
        *,
        slots: int,
        interval_ms: int,
        figures: StreamFigures,
        progress: QueryProgress,
        cancelled: threading.Event,
        pausing: threading.Event,
    ) -> None:
        self._session = session
        self._plan = plan
        self._described = run
        self._location = location
        self._services = services
        self._slots = slots
        self._interval_ms = interval_ms
        self._figures = figures
        self._progress = progress
        self._cancelled = cancelled
        self._pausing = pausing
        self._shipped = ship(plan, services)
        self._chained: dict[int, frozenset[int]] = {}
        self._storage = services.checkpoint_storage(location)
        self._noted_due_ms: int | None = 0  # of an earlier query, nobody knows what
        self._ended = threading.Event()
        self._paused = threading.Event()
        self._problem: BaseException | None = None
        self._sent: BaseException | None = None

    def run(self) -> bool:
        """Run a query until all input has ended and is written, or until it is to pause: then False.

        Raises:
            JobCancelledError: it was cancelled.
            BaseException: what a function, a source or a sink has raised, with notes; Spark's own troubles.
        """
        tries, done = 0, self._figures.batches
        while True:
            self._problem = None
            try:
                with _told_once(lambda: self._sent):
                    return self._run()
            except Exception as error:
                # Tries in a row in which no micro-batch was committed.
                tries = tries + 1 if self._figures.batches == done else 1
                done = self._figures.batches
                if _NO_PROCESS not in str(error) or tries >= _STARTS or self._cancelled.is_set():
                    raise
                _log.warning("Spark has waited 10 s for a Python process to start: the query is started again")

    def _run(self) -> bool:
        refuse_speculation(self._session, self._plan)
        run, local = self._described, in_this_process(self._plan)
        self._chained = chained_sinks(self._plan, run.partitions, spread=run.spread, local=local)
        sinks = SinkStage(
            self._plan,
            self._location,
            services=self._services,
            shipped=self._shipped,
            slots=self._slots,
            owner=self._described.id,
            chained=self._chained,
        )
        sinks.open()
        try:
            if sinks.ended:
                return True
            query = self._start(sinks)
            try:
                has_ended = self._wait(query, sinks)
            finally:
                # Before the query is stopped: its thread may be in a sink of this process, and wait there.
                sinks.cancel()
                with suppress(Exception):  # it has ended, or Spark has
                    query.stop()
        finally:
            sinks.close()
        last = query.lastProgress
        if last is not None:
            publish_last_positions(self._storage, self._plan, last)
        return has_ended

    def _start(self, sinks: SinkStage) -> Any:
        run = self._described
        limits = LIMITS.every(self._interval_ms, len(self._plan.sources))
        rows = stream_rows(self._session, self._plan, run, self._shipped, self._location, limits, self._chained)
        writer = rows.writeStream.foreachBatch(lambda frame, batch: self._write(sinks, frame, batch))
        writer = writer.option("checkpointLocation", f"{for_spark(self._location)}/spark")
        writer = writer.trigger(processingTime=f"{self._interval_ms} milliseconds")
        return writer.queryName(f"sluiceway: {run.job}").start()

    def _write(self, sinks: SinkStage, frame: Any, batch: int) -> None:
        """Write a micro-batch. Called in a thread of Spark."""
        clock = self._services.clock
        began = clock.monotonic()
        try:
            # This thread and that of the query in the JVM are one to Spark, so that its tasks know.
            context = self._session.sparkContext
            context.setLocalProperty(NOW_MS, str(sinks.time_of(batch)))
            context.setLocalProperty(SINKS_AFTER, sinks.after(batch))
            steps = f"{steps_text(self._plan)}, micro-batch {batch}"
            context.setLocalProperty("spark.job.description", job_text(self._described.job, steps))
            report = sinks.write(frame, batch)
            before = self._figures.records_in
            self._figures.take(report, clock.monotonic() - began)
            self._progress.wrote(batch, self._figures.records_in - before)
            self._note_due()
        except BaseException as error:
            self._problem = error
            self._sent = in_short(error)
            raise self._sent from None
        if report.ended:
            self._ended.set()
        elif self._pausing.is_set():
            self._paused.set()

    def _note_due(self) -> None:
        """Note when work is due, before the next micro-batch is planned in another process."""
        due_ms = self._figures.due_ms
        if due_ms != self._noted_due_ms:
            write_due(self._storage, due_ms)
            self._noted_due_ms = due_ms

    def _wait(self, query: Any, sinks: SinkStage) -> bool:
        while not self._is_over(query):
            self._progress.look(query)
            if self._cancelled.is_set():
                sinks.cancel()
                query.stop()
                raise JobCancelledError(f"job {self._described.job!r} was cancelled")
            if self._ended.is_set():
                self._see_committed(query, sinks)
                return True
            if self._paused.is_set():
                self._see_committed(query, sinks)
                return False
            if self._pausing.is_set() and not all(map(query.status.get, ("isTriggerActive", "isDataAvailable"))):
                return False  # between two micro-batches there is none to wait for
        raise ConnectorError(
            f"Spark has ended the query of {self._described.job!r} and gives no error: somebody has stopped it, "
            "or its thread in Spark's JVM has died, of which the standard error of this program has the stack"
        )

    def _is_over(self, query: Any) -> bool:
        try:
            return bool(query.awaitTermination(_LOOK_S))
        except Exception:
            # Spark's error has the short text of _write() alone; the exception itself was kept here.
            if self._problem is not None:
                raise_again(self._problem)
            raise

    def _see_committed(self, query: Any, sinks: SinkStage) -> None:
        """Wait until Spark has committed the last micro-batch as well."""
        clock = self._services.clock
        until = clock.monotonic() + _COMMITTED_S
        while clock.monotonic() < until:
            last = query.lastProgress
            if not query.isActive or (last is not None and last["batchId"] >= (sinks.committed or 0)):
                return
            self._cancelled.wait(_LOOK_S)


@contextmanager
def _told_once(sent: Callable[[], BaseException | None]) -> Iterator[None]:
    """Keep py4j from logging the exception that stands for one that reaches this program, and nothing else."""
    logger = logging.getLogger("py4j.clientserver")

    def is_other(record: logging.LogRecord) -> bool:
        return not (record.exc_info and record.exc_info[1] is not None and record.exc_info[1] is sent())

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
