"""Construction of the stages of Spark from the plan of a pipeline: of a batch job, and of a streaming query."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.run_directory import Run
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.job_texts import steps_text
from sluiceway_spark.structured.row_format import SCHEMA, together
from sluiceway_spark.structured.stages.batch_tasks import source_task, stage_task
from sluiceway_spark.structured.stages.chained_sinks_spec import ChainedSinksSpec
from sluiceway_spark.structured.stages.large_plans import in_message_or_file
from sluiceway_spark.structured.stages.source_stage import source_rows
from sluiceway_spark.structured.stages.stage_grouping import StageGroup
from sluiceway_spark.structured.stages.stateful_stage import StageProcessor
from sluiceway_spark.structured.state.placement import keys_of

__all__ = ["batch_rows", "stream_rows"]

_AT_ONCE: Final = 2
"""Partitions that Spark computes at a time when rows are taken one partition after the other."""


def batch_rows(
    session: Any, plan: SteppedPlan, shipped: bytes, dealt: bytes, groups: list[StageGroup], local: frozenset[int]
) -> Any:
    """Build the stages of a batch job, and return the DataFrame whose rows are for the driver.

    Stages of the plan that are grouped run in one ``mapInArrow``; between two groups Spark shuffles by target.

    Args:
        session: of Spark.
        plan: the job.
        shipped: plan and services for Python workers, from ``batch_tasks.ship``.
        dealt: pickled pairs of a target and its splits.
        groups: the groups of stages, in their order.
        local: ids of the vertices whose sinks run in the driver.
    """
    path = list(sys.path)
    for_driver = frozenset(t for t in plan.targets_of(plan.last_stage) if plan.who(t)[0] in local)
    first, *others = groups
    readers = session.range(0, first.parts, 1, first.parts)
    task = _named(source_task(path, shipped, dealt, first.stages, for_driver), plan, first)
    rows = readers.mapInArrow(task, SCHEMA)
    for each in others:
        targets = {t for stage in each.stages for t in plan.targets_of(stage)}
        if targets <= for_driver and _parts_before(groups, each) <= _AT_ONCE:
            # Only sinks of the driver are left, which takes rows partition by partition. Of few partitions all are
            # computed at once for that. Of more they are in front of a shuffle alone, so that pays for itself.
            break
        rows = together(rows, each.parts, each.parts)
        if not targets <= for_driver:
            rows = rows.mapInArrow(_named(stage_task(path, shipped, each.stages, for_driver), plan, each), SCHEMA)
    return rows


def _named(task: Any, plan: SteppedPlan, each: StageGroup) -> Any:
    """Give a task the name of its steps, which Spark's pages show in the plan of the query."""
    task.__name__ = steps_text(plan, each.stages)
    return task


def _parts_before(groups: list[StageGroup], each: StageGroup) -> int:
    """Return the number of partitions of the rows that enter a group of stages."""
    return groups[groups.index(each) - 1].parts


def stream_rows(
    session: Any,
    plan: SteppedPlan,
    run: Run,
    shipped: bytes,
    location: str,
    limits: BatchLimits,
    chained: Mapping[int, frozenset[int]],
) -> Any:
    """Build the stages of a streaming query up to the sinks, and return their streaming DataFrame.

    The sources are one data source. Each later stage but the last is one ``transformWithState``, whose groups are
    the targets of the plan. Sinks run in the last of these, where they are chained, or in ``foreachBatch``.

    Args:
        session: of Spark, for this query alone.
        plan: the job.
        run: the run, by whose id Python workers tell the state of queries apart.
        shipped: plan and services for Python workers, from ``batch_tasks.ship``.
        location: path or URL of the directory of the run.
        limits: of a micro-batch.
        chained: producers of the sinks that are chained to the last stateful stage, from ``chained_sinks``.
    """
    place = location if "://" in location else os.path.abspath(os.path.expanduser(location))
    rows = source_rows(session, shipped, place, limits)
    sent = in_message_or_file(session, shipped) if plan.last_stage > 1 else shipped
    for stage in range(1, plan.last_stage):
        is_last = stage == plan.last_stage - 1
        chaining = ChainedSinksSpec(place, dict(chained)) if chained and is_last else None
        processor = StageProcessor(run.id, list(sys.path), sent, stage, spread=run.spread, chaining=chaining)
        if run.spread:
            rows = rows.withColumn("target", _key_of_target(plan, run.partitions))
        rows = rows.groupBy("target").transformWithState(processor, SCHEMA, outputMode="append", timeMode="None")
    return rows


def _key_of_target(plan: SteppedPlan, partitions: int) -> Any:
    """Return the column with the key of the group of a row's target.

    It has to replace the column ``target``: PySpark passes the columns of groups by name, so that an expression of
    ``groupBy()`` with the name of a column is that column again.
    """
    from pyspark.sql.functions import expr

    return expr(f"array({', '.join(map(str, keys_of(plan, partitions)))})[target]")
