"""Rows between the stages of a transform: control rows of the first stage, ends of a batch, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sluiceway.elements import MAX_WATERMARK, Batch, EndOfData, EndOfPartition, Watermark
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.row_format import Row

__all__ = ["LAST", "calls", "records_for_spark", "seq_of", "time_in", "with_ends"]

LAST: Final = 1 << 62
"""``seq`` of what comes behind all records of a DataFrame or micro-batch."""

_PARTITION_BITS: Final = 40
_MANY: Final = 8192


def seq_of(partition: int, number: int) -> int:
    """Return the ``seq`` of a partition's row: records keep the order of the DataFrame, whoever is faster."""
    return (partition << _PARTITION_BITS) | number


def calls(plan: SteppedPlan, now_ms: int = 0) -> Iterator[Row]:
    """Yield a row for each subtask behind the first stage, so that all of them work, with or without records.

    Args:
        plan: the job.
        now_ms: processing time of the micro-batch, ms since the epoch.
    """
    for stage in range(1, plan.last_stage):
        for target in plan.targets_of(stage):
            # Without elements, and before all others: any sender will do.
            yield Row(stage, target, plan.senders_into(target)[0].sender, -1 - now_ms, b"")


def time_in(seq: int) -> int | None:
    """Return the processing time in the ``seq`` of a row of :func:`calls`, ms; None: it is another row."""
    return -1 - seq if seq < 0 else None


def with_ends(plan: SteppedPlan, stage: int, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of a batch for the subtasks of a stage, with the end of the DataFrame behind those of each.

    Tasks of the first stage do not know of one another, so none of them can end a channel: all are one sender.

    Args:
        plan: the job.
        stage: the stage; rows of later ones pass unchanged.
        rows: those of a target behind one another, its call first.
    """
    target = -1
    for row in rows:
        if row.stage != stage:
            yield row
            continue
        if row.target != target:
            yield from _ends(plan, stage, target)
            target = row.target
        yield row
    yield from _ends(plan, stage, target)


def _ends(plan: SteppedPlan, stage: int, target: int) -> Iterator[Row]:
    if target < 0:
        return
    for route in plan.senders_into(target):
        edge, _ = plan.from_whom(route.sender)
        if edge.source in plan.sources:
            end = plan.pack(route.sender, (Watermark(MAX_WATERMARK), EndOfData(), EndOfPartition()))
            yield Row(stage, target, route.sender, LAST, end)


def records_for_spark(
    rows: Iterable[Row], last_stage: int, elements: Callable[[Row], Iterable[Any]]
) -> Iterator[Batch[Any]]:
    """Yield the records for the DataFrame that is returned, some thousands at a time.

    Args:
        rows: of any stage.
        last_stage: that of the sink.
        elements: returns the elements of a row.
    """
    values: list[Any] = []
    times: list[int] | None = None
    for row in rows:
        if row.stage != last_stage:
            continue
        for element in elements(row):
            if type(element) is not Batch or not element.values:
                continue
            if element.columns is not None:
                yield element
                continue
            if values and (len(values) >= _MANY or (times is None) is not (element.timestamps is None)):
                yield Batch(values, times)
                values = []
            if not values:
                values, times = [], None if element.timestamps is None else []
            values += element.values
            if times is not None and element.timestamps is not None:
                times += element.timestamps
    if values:
        yield Batch(values, times)
