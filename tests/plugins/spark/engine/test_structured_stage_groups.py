"""Which stages of a batch job share tasks of Spark's."""

from __future__ import annotations

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.stages.stage_grouping import StageGroup, stage_groups


def groups(flow: sw.Pipeline, slots: int = 2, *, by_id: bool = True) -> list[StageGroup]:
    graph, settings = flow.graph(Settings()), Settings()
    plan = SteppedPlan.of(graph, settings, default_manager().services(), keyed_subtasks=slots)
    return stage_groups(plan, slots, by_id=by_id)


def counts(parallelism: int) -> sw.Pipeline:
    flow = sw.Pipeline("counts", parallelism=parallelism)
    flow.from_sequence(0, 9).key_by(lambda n: n % 3).count().collect()
    return flow


def test_a_sink_runs_where_its_only_producer_does() -> None:
    assert groups(counts(2)) == [StageGroup((0,), 2), StageGroup((1, 2), 2)]


def test_one_sink_for_two_producers_has_a_pass_of_its_own() -> None:
    assert groups(counts(1)) == [StageGroup((0,), 1), StageGroup((1,), 2), StageGroup((2,), 1)]


def test_a_pipeline_without_an_exchange_has_one_pass() -> None:
    flow = sw.Pipeline("maps", parallelism=3)
    flow.from_sequence(0, 9).map(str).collect()
    assert groups(flow) == [StageGroup((0, 1), 3)]


def test_who_hears_from_an_earlier_stage_too_has_a_pass_of_its_own() -> None:
    flow = sw.Pipeline("union", parallelism=2)
    numbers = flow.from_sequence(0, 9)
    numbers.union(numbers.key_by(lambda n: n % 3).count()).collect()
    assert groups(flow) == [StageGroup((0,), 2), StageGroup((1,), 2), StageGroup((2,), 2)]


def test_where_spark_cannot_be_told_the_partition_only_readers_share_their_tasks() -> None:
    assert groups(counts(2), by_id=False) == [StageGroup((0,), 2), StageGroup((1,), 2), StageGroup((2,), 2)]


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_every_stage_is_in_one_pass(slots: int) -> None:
    def stages(made: list[StageGroup]) -> list[Any]:
        return [stage for each in made for stage in each.stages]

    for parallelism in (1, 2, 4):
        assert stages(groups(counts(parallelism), slots)) == [0, 1, 2]
