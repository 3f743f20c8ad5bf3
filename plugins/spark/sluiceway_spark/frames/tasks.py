"""Tasks of a transform in Spark's Python workers: entry of rows, stages of subtasks, results as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluiceway.clock import Clock, SystemClock, VirtualClock
from sluiceway.elements import MAX_WATERMARK, Batch, Element, Watermark
from sluiceway.engine import Services
from sluiceway.functions import CheckpointedFunction
from sluiceway.network.partitioners import ForwardPartitioner
from sluiceway.runtime.messages.pickling import load
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.steps import SourceStep
from sluiceway.util.garbage_collector import freeze_between_tasks, seldom
from sluiceway_spark.datasource.records_to_rows import Tables
from sluiceway_spark.frames.endpoints import FrameSource, PartitionReader
from sluiceway_spark.frames.rows import LAST, calls, records_for_spark, seq_of, with_ends
from sluiceway_spark.structured.row_format import Row, rows_in, to_batches
from sluiceway_spark.structured.row_packing import FULL, MANY, RowPacker
from sluiceway_spark.structured.stages.batch_tasks import RecentPlans, SubtaskFailedError, _Stages

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NOW", "Result", "Shipped", "calling_task", "entry_task", "readable", "result_task", "stage_task"]

NOW: Final = "__sluiceway_now_ms"
"""Column with the processing time of the micro-batch, which Spark gives again if that is repeated."""


@dataclass(frozen=True)
class Result:
    """Columns of the DataFrame that is returned.

    Attributes:
        schema: Arrow's, as Spark makes it of the schema in this session.
        kind: type of the records, or None if it is not known.
        timestamp: column for event times, or None.
        where: names the transform in messages.
    """

    schema: Any
    kind: Any
    timestamp: str | None
    where: str


@dataclass(frozen=True)
class Shipped:
    """Job in the form in which Python workers get it.

    Attributes:
        job: plan and services, from ``batch_tasks.ship``.
        result: pickled :class:`Result`.
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        streams: whether the DataFrame is a streaming one.
    """

    job: bytes
    result: bytes
    path: tuple[str, ...]
    streams: bool


def entry_task(shipped: Shipped, *, last: bool) -> Any:
    """Return the task that takes in the rows of the DataFrame, and runs the steps before the first exchange.

    Args:
        shipped: the job.
        last: whether results come out of it; else rows for later stages.
    """
    return _task("enter", shipped, last)


def stage_task(shipped: Shipped, stages: tuple[int, ...], *, last: bool) -> Any:
    """Return the task that runs the subtasks of stages of a batch, on rows that are together by target, sorted.

    Args:
        shipped: the job.
        stages: the stages; rows come for the first of them.
        last: whether results come out of it; else rows for later stages.
    """
    return _task("run_stages", shipped, stages, last)


def calling_task(shipped: Shipped) -> Any:
    """Return the task that calls each subtask of a batch, whose DataFrame may have no rows for it."""
    return _task("call_all", shipped)


def result_task(shipped: Shipped) -> Any:
    """Return the task that makes columns of the rows behind all stages."""
    return _task("give", shipped)


def _task(function: str, shipped: Shipped, *arguments: Any) -> Any:
    path, given = shipped.path, (shipped.job, shipped.result, shipped.path, shipped.streams)

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import sys

        sys.path += [entry for entry in path if entry not in sys.path]
        from sluiceway_spark.frames import tasks

        yield from getattr(tasks, function)(tasks.Shipped(*given), batches, *arguments)

    return task


# ---- in the Python workers ----------------------------------------------------------------------------------

_plans: Final = RecentPlans()


def _job(shipped: Shipped) -> tuple[SteppedPlan, Services]:
    return _plans.take(shipped.job)


@contextmanager
def readable() -> Iterator[None]:
    """Let exceptions of functions out as they are: it is the user who sees what Spark says of them."""
    try:
        yield
    except SubtaskFailedError as error:
        # sent() raises from None, which leaves the exception of the function as the context.
        cause = error.__context__
        raise (cause if isinstance(cause, Exception) else error) from None


def enter(shipped: Shipped, batches: Iterable[pa.RecordBatch], last: bool) -> Iterator[pa.RecordBatch]:
    """Take in the rows of one partition."""
    freeze_between_tasks()
    with readable(), seldom():
        plan, services = _job(shipped)
        entry = _Entry(plan, services, streams=shipped.streams)
        if last:
            yield from _results(shipped, entry.elements(batches), plan, packed=False)
        else:
            yield from to_batches(entry.rows(batches))


def run_stages(
    shipped: Shipped, batches: Iterable[pa.RecordBatch], stages: tuple[int, ...], last: bool
) -> Iterator[pa.RecordBatch]:
    """Run the subtasks of stages of a batch."""
    with readable():
        plan, _ = _job(shipped)
        with _Stages(shipped.job, stages, frozenset()) as worker:
            rows = worker.run(with_ends(plan, stages[0], rows_in(batches)))
            yield from _results(shipped, rows, plan, packed=True) if last else to_batches(rows)


def call_all(shipped: Shipped, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call each subtask."""
    for _ in batches:
        yield from to_batches(calls(_job(shipped)[0]))


def give(shipped: Shipped, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make columns of rows."""
    yield from _results(shipped, rows_in(batches), _job(shipped)[0], packed=True)


def _results(
    shipped: Shipped, rows: Iterable[Row], plan: SteppedPlan, *, packed: bool
) -> Iterator[pa.RecordBatch]:
    result: Result = load(shipped.result)
    tables = Tables(result.schema, result.kind, result.timestamp, result.where)

    def elements(row: Row) -> Iterable[Element]:
        return plan.unpack(row.sender, row.payload) if packed else row.payload

    for batch in records_for_spark(rows, plan.last_stage, elements):
        yield tables.of(batch)


class _Entry:
    """Subtask of the first stage in one partition.

    Args:
        plan: the job.
        services: what plugins give.
        streams: whether the partition is one of a micro-batch.
    """

    def __init__(self, plan: SteppedPlan, services: Services, *, streams: bool) -> None:
        (self._vertex,) = plan.sources
        head = plan.graph.vertex(self._vertex).head.step
        assert isinstance(head, SourceStep)
        assert isinstance(head.source, FrameSource)
        self._source = head.source
        self._plan = plan
        self._services = services
        self._streams = streams
        self._partition = _partition()
        self._consumers = _consumers_of(plan, self._vertex, self._partition, streams=streams)
        self._marks: dict[tuple[int, int, int], int] = {}
        self._now_ms: int | None = None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
        """Yield the rows for later stages."""
        packer = RowPacker(self._plan)
        packed = (part for row in self.elements(batches, lambda: packer.many) for part in packer.pack(*row))
        for number, row in enumerate(packed):
            yield row._replace(seq=seq_of(self._partition, number))
        if not self._streams or self._now_ms is None:
            return
        yield from calls(self._plan, self._now_ms)
        for (stage, target, sender), mark in self._marks.items():
            yield Row(stage, target, sender, LAST, self._plan.pack(sender, (Watermark(mark),)))

    def elements(self, batches: Iterable[pa.RecordBatch], many: Callable[[], int] = lambda: MANY) -> Iterator[Row]:
        """Yield rows whose payload is a list of batches of records; what else comes is kept.

        Args:
            batches: the rows of the DataFrame.
            many: returns the number of records that may wait.
        """
        if self._streams:
            batches = self._with_time(batches)
            first = next(iter(batches), None)
            # Without a row the time of the micro-batch is not known, and there is nothing to say to later stages.
            if first is None:
                return
            batches = _chained(first, batches)
        if (schema := self._source.schema) is not None:  # zones are those of the session, texts may be large
            from sluiceway.columns.not_null import cast

            batches = (cast(batch, schema) for batch in batches)
        reader = PartitionReader(batches, self._source.rows.batches, ends=not self._streams)
        clock = self._clock()
        chain = SteppedTask(
            self._plan,
            self._vertex,
            0,
            state_backend=self._services.state_backend("memory"),
            clock=clock,
            services=self._services,
            reader=lambda context: reader,
            calls_clock=SystemClock(),
        )
        try:
            chain.open()
            if self._streams:
                while not reader.over:
                    chain.read(MANY, lambda: reader.over or chain.waiting >= many())
                    yield from self._taken(chain, FULL)
            else:  # to its end, with which steps give out what they still hold
                while not chain.read(MANY, lambda: chain.waiting >= many()):
                    yield from self._taken(chain, FULL)
            if isinstance(clock, VirtualClock):  # watermarks that are made now and then are made now
                clock.advance(self._plan.settings.auto_watermark_interval_ms)
                answers = iter([False])
                chain.read(1, lambda: next(answers, True))
                chain.settle()
            yield from self._taken(chain, 0)
        except BaseException:
            with suppress(Exception):  # what has failed first is told
                chain.close()
            raise
        chain.close()

    def _clock(self) -> Clock:
        return self._services.clock if self._now_ms is None else VirtualClock(self._now_ms)

    def _with_time(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                place = batch.schema.get_field_index(NOW)
                self._now_ms = batch.column(place)[0].as_py()
                yield batch.remove_column(place)

    def _taken(self, chain: SteppedTask, least: int) -> Iterator[Row]:
        for stage, target, sender, _, elements in chain.take(least) or (chain.take() if least else ()):
            batches = [element for element in elements if type(element) is Batch]
            for element in elements:
                if type(element) is Watermark and element.timestamp < MAX_WATERMARK:
                    self._marks[stage, target, sender] = element.timestamp
            if batches:
                yield Row(stage, self._consumers.get(sender, target), sender, 0, batches)


def _consumers_of(plan: SteppedPlan, source: int, partition: int, *, streams: bool) -> dict[int, int]:
    """Return the target of what a partition forwards, by sender.

    The subtask of the source, which each partition plays, would forward everything to its first consumer.
    Partitions of a micro-batch have no fixed numbers: steps whose state is their subtask's stay with that one.
    """
    found = {}
    for edge in plan.graph.out_edges(source):
        vertex = plan.graph.vertex(edge.target)
        functions = (function for node in vertex.nodes for function in node.step.functions)
        has_state = streams and any(isinstance(function, CheckpointedFunction) for function in functions)
        if edge.edge.partitioner.name == ForwardPartitioner.name and not has_state:
            found[plan.sender(edge.id, 0)] = plan.target(vertex.id, partition % vertex.parallelism)
    return found


def _chained(first: Any, others: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
