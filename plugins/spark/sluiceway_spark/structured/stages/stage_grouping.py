"""Grouping of stages of the plan that run in the same tasks of Spark, without a shuffle between them."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.runtime.stepped import SteppedPlan

__all__ = ["StageGroup", "stage_groups"]


@dataclass(frozen=True, slots=True)
class StageGroup:
    """Group of stages of the plan that are one stage of Spark.

    Attributes:
        stages: those of the plan that run in it, one after the other.
        parts: how many tasks it has. A target of the first of them runs in the task of its number modulo that,
            but for a source: the n-th reader runs in the n-th task.
    """

    stages: tuple[int, ...]
    parts: int


def stage_groups(plan: SteppedPlan, slots: int, *, by_id: bool, readers_known: bool = True) -> list[StageGroup]:
    """Return the groups of stages of a plan, in their order.

    A stage runs where the one before it does if each of its subtasks receives from one task there and from nowhere
    else, and no fewer tasks run in parallel then.

    Args:
        plan: the job.
        slots: how many tasks run at a time.
        by_id: whether Spark places a row in the partition that it names. If not, the task of a target is known
            for sources alone.
        readers_known: whether the n-th reader runs in the n-th task.
    """
    readers = plan.targets_of(0)
    groups = [StageGroup((0,), len(readers))]
    where: dict[int, int] | None = None
    if readers_known:
        where = {target: index for index, target in enumerate(readers)}
    for stage in range(1, plan.last_stage + 1):
        targets = plan.targets_of(stage)
        parts = min(len(targets), slots)
        there = None if where is None else _same_place(plan, targets, where)
        if there is not None and len(set(there.values())) >= parts:
            groups[-1] = StageGroup((*groups[-1].stages, stage), groups[-1].parts)
            where = there
            continue
        groups.append(StageGroup((stage,), parts))
        where = {target: target % parts for target in targets} if by_id else None
    return groups


def _same_place(plan: SteppedPlan, targets: list[int], where: dict[int, int]) -> dict[int, int] | None:
    """Return the task of each target if each runs where all its producers run; None: a target has several."""
    found: dict[int, int] = {}
    for target in targets:
        producers = set()
        for route in plan.senders_into(target):
            edge, subtask = plan.from_whom(route.sender)
            producers.add(where.get(plan.target(edge.source, subtask)))
        if len(producers) != 1 or None in producers:
            return None
        (task,) = producers
        assert task is not None
        found[target] = task
    return found
