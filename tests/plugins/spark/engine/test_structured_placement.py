"""Partitions of Spark's state in which subtasks are."""

from __future__ import annotations

from collections import Counter

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.state.placement import keys_of, partition_of, place_of, target_of


def plan_of(keyed_subtasks: int, parallelism: int = 2) -> SteppedPlan:
    flow = sw.Pipeline("counts", parallelism=parallelism)
    counts = flow.from_sequence(0, 9).key_by(lambda n: n % 3).count()
    counts.key_by(lambda pair: pair[0]).map(str).collect()
    settings = Settings()
    return SteppedPlan.of(
        flow.graph(settings), settings, default_manager().services(), keyed_subtasks=keyed_subtasks
    )


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
def test_subtasks_are_spread_evenly_and_found_by_their_keys(partitions: int) -> None:
    plan = plan_of(6)
    keys, places = keys_of(plan, partitions), [place_of(plan, t, partitions) for t in range(plan.targets)]
    assert [target_of(key) for key in keys] == list(range(plan.targets))
    assert [partition_of(key, partitions) for key in keys] == places
    for vertex in plan.graph.vertices:
        first = plan.target(vertex.id, 0)
        held = Counter(places[first : first + vertex.parallelism])
        assert max(held.values()) <= -(-vertex.parallelism // partitions)


def test_a_sink_is_where_its_producers_are() -> None:
    plan = plan_of(6)
    for target in plan.targets_of(plan.last_stage):
        for route in plan.senders_into(target):
            edge, subtask = plan.from_whom(route.sender)
            assert place_of(plan, plan.target(edge.source, subtask), 2) == place_of(plan, target, 2)
