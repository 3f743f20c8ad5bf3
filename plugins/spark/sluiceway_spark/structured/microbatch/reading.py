"""Reading of micro-batches, in Python workers: the rows of one subtask of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.connector import Reader, ReaderContext
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import BatchReader, BatchWork, ReaderCache
from sluiceway.runtime.microbatch.spooled_source import readable
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.steps import SourceStep
from sluiceway.util.garbage_collector import freeze_between_tasks, seldom
from sluiceway_spark.structured.microbatch.counts import NOTHING
from sluiceway_spark.structured.microbatch.metrics import did_since, told
from sluiceway_spark.structured.microbatch.source_spec import SourcePart, SourceStage, batch_files
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.row_packing import FULL, MANY, RowPacker
from sluiceway_spark.structured.stages.batch_tasks import sent

__all__ = ["read_part"]

# Readers that stay open between batches.
_readers: Final = ReaderCache()


def read_part(stage: SourceStage, part: SourcePart) -> Iterator[Row]:
    """Yield the rows of one source subtask in one batch."""
    freeze_between_tasks()
    try:
        plan, services, storage = stage.open()
        silent = {
            (route.sender, route.target): Row(route.stage, route.target, route.sender, -1, b"")
            for route in plan.routes_from(part.vertex, part.reader)
        }
        if part.work is not None:
            files = batch_files(storage, plan, part.vertex, part.run)
            with seldom():
                for row in _run(plan, services, files, part.vertex, part.work):
                    silent.pop((row.sender, row.target), None)
                    yield row
        yield from silent.values()
    except Exception as error:
        raise sent(error) from None


def _run(plan: SteppedPlan, services: Services, files: BatchLog, vertex: int, work: BatchWork) -> Iterator[Row]:
    before = files.read(work.batch - 1, work.reader) if work.batch > 1 else None
    if before is None and work.batch > 1:
        raise CheckpointError(
            f"the record of reader {work.reader} in micro-batch {work.batch - 1} is not in {files.where}: a run "
            "has to keep its directory, complete, and its executors have to see it"
        )
    head = plan.graph.vertex(vertex).head.step
    assert isinstance(head, SourceStep)
    clock = VirtualClock(0)
    clock.advance(work.time_ms - work.silent_ms)
    source = readable(head.source, files)
    # Splits that are not begun must not hold watermarks back: the chain hears of one when the reader gets it.
    reader = BatchReader(
        source,
        work,
        files,
        cache=_readers,
        program=str(plan.program),
        given=lambda splits: chain.add_splits(splits),
    )

    def create(context: ReaderContext) -> Reader[Any]:
        reader.metrics = context.metrics
        return reader

    packer = RowPacker(plan)
    chain = SteppedTask(
        plan,
        vertex,
        work.reader,
        state_backend=services.state_backend("memory"),
        clock=clock,
        services=services,
        reader=create,
        calls_clock=SystemClock(),
    )
    try:
        restored, position = files.unpickled(before.payload) if before is not None else ((), None)
        chain.open(restored, position)
        clock.advance(work.silent_ms)  # and no further: who repeats the batch has the same time
        while not chain.read(MANY, lambda: reader.over or chain.waiting >= packer.many) and not reader.over:
            for part in chain.take(FULL) or chain.take():
                yield from packer.pack(*part)
        if not chain.ended:  # watermarks that are made now and then are made now
            # What the batch before had, or others have in this one, says nothing of these.
            chain.were_silent(reader.silent, work.since_ms - work.silent_ms)
            clock.advance(plan.settings.auto_watermark_interval_ms)
            chain.read(1, _once())
        chain.settle()
        snapshots = chain.snapshot(work.batch)
        rest = [row for part in chain.take() for row in packer.pack(*part)]
        reader.finish(dumps_with_classes((snapshots, chain.position())))
        yield from rest
        yield told(plan, did_since(plan, chain, NOTHING))
    except BaseException:
        with suppress(Exception):  # what has failed first is told
            chain.close()
        raise
    chain.close()


def _once() -> Callable[[], bool]:
    answers = iter([False])
    return lambda: next(answers, True)
