from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluiceway.config.settings import Settings
from sluiceway.errors import UnknownNameError
from sluiceway.graph import ExecutionGraph, ExecutionState, ExecutionVertex, InputRef, JobGraph
from sluiceway.scheduler import SCHEDULERS, SchedulingStrategy, scheduling_strategy

S = ExecutionState
ROAD = [S.SCHEDULED, S.DEPLOYING, S.INITIALIZING, S.RUNNING, S.FINISHED]


def bring(subtask: ExecutionVertex, to: ExecutionState) -> None:
    while subtask.state is not to:
        current = subtask.current
        nxt = ROAD[0] if current.state is S.CREATED else ROAD[ROAD.index(current.state) + 1]
        assert current.transition(current.state, nxt, 0)


def shown(subtasks: list[ExecutionVertex]) -> list[tuple[int, int]]:
    return [(s.job_vertex.id, s.subtask) for s in subtasks]


def blocking(job: JobGraph) -> JobGraph:
    return JobGraph(job.job_name, job.vertices, tuple(replace(e, blocking=True) for e in job.edges))


def two_stage(program: Any, parallelism: int = 2) -> JobGraph:
    program.sink(program.by("rebalance", program.source()))
    job: JobGraph = program.job(parallelism)
    return job


class TestNames:
    def test_an_unknown_one_lists_the_known(self, program: Any) -> None:
        graph = ExecutionGraph(two_stage(program))
        with pytest.raises(UnknownNameError) as caught:
            scheduling_strategy("eagre", graph)
        message = str(caught.value)
        assert "no scheduling strategy 'eagre'. Did you mean 'eager'?" in message
        assert "'eager', 'lazy-from-sources', 'pipelined-region'" in message

    def test_the_default_of_the_settings_is_one(self) -> None:
        assert Settings().scheduler == "pipelined-region"
        assert Settings().scheduler in SCHEDULERS


class TestEager:
    def test_is_everything_at_once_and_once(self, program: Any) -> None:
        graph = ExecutionGraph(blocking(two_stage(program)))
        strategy = scheduling_strategy("eager", graph)
        first = strategy.next()
        assert shown(first) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        for subtask in first:
            bring(subtask, S.SCHEDULED)
        assert strategy.next() == []

    def test_restarted_subtasks_come_again(self, program: Any) -> None:
        graph = ExecutionGraph(two_stage(program))
        strategy = scheduling_strategy("eager", graph)
        for subtask in strategy.next():
            bring(subtask, S.RUNNING)
        failed = graph.subtask(1, 1)
        failed.current.fail(None, 1)
        assert strategy.next() == []
        failed.restart(2)
        assert strategy.next() == [failed]


class TestLazyFromSources:
    def test_waits_until_all_producers_run(self, program: Any) -> None:
        graph = ExecutionGraph(two_stage(program))
        strategy = scheduling_strategy("lazy-from-sources", graph)
        sources = strategy.next()
        assert shown(sources) == [(0, 0), (0, 1)]
        bring(sources[0], S.RUNNING)
        bring(sources[1], S.INITIALIZING)
        assert strategy.next() == []
        bring(sources[1], S.RUNNING)
        assert shown(strategy.next()) == [(1, 0), (1, 1)]

    def test_pointwise_consumers_wait_for_their_own_producers_only(self, program: Any) -> None:
        program.sink(program.source())
        graph = ExecutionGraph(program.job(2, chaining=False))
        strategy = scheduling_strategy("lazy-from-sources", graph)
        bring(graph.subtask(0, 1), S.RUNNING)
        assert shown(strategy.next()) == [(0, 0), (1, 1)]

    def test_blocking_inputs_must_have_finished(self, program: Any) -> None:
        graph = ExecutionGraph(blocking(two_stage(program, 1)))
        strategy = scheduling_strategy("lazy-from-sources", graph)
        bring(graph.subtask(0, 0), S.RUNNING)
        assert strategy.next() == []
        bring(graph.subtask(0, 0), S.FINISHED)
        assert shown(strategy.next()) == [(1, 0)]

    def test_feedback_is_not_waited_for(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(program.by("rebalance", head))
        head.feedback.append(InputRef(body))
        program.sink(body)
        graph = ExecutionGraph(program.job())
        strategy = scheduling_strategy("lazy-from-sources", graph)
        order = []
        while (subtasks := strategy.next()) != []:
            order.append([s.job_vertex.name for s in subtasks])
            for subtask in subtasks:
                bring(subtask, S.RUNNING)
        assert order == [["source(Numbers)"], ["iterate"], ["map(same) -> sink(Drain)"]]


class TestPipelinedRegion:
    def test_pipelined_jobs_go_at_once(self, program: Any) -> None:
        graph = ExecutionGraph(two_stage(program))
        assert len(scheduling_strategy("pipelined-region", graph).next()) == 4

    def test_a_region_waits_for_its_blocking_inputs(self, program: Any) -> None:
        graph = ExecutionGraph(blocking(two_stage(program)))
        strategy = scheduling_strategy("pipelined-region", graph)
        assert shown(strategy.next()) == [(0, 0), (0, 1)]
        bring(graph.subtask(0, 0), S.FINISHED)
        bring(graph.subtask(0, 1), S.RUNNING)
        assert strategy.next() == []
        bring(graph.subtask(0, 1), S.FINISHED)
        assert shown(strategy.next()) == [(1, 0), (1, 1)]

    def test_a_whole_region_waits_for_the_blocking_input_of_one_of_its_tasks(self, program: Any) -> None:
        # a ==blocking==> b --> d <-- c: nothing of {b, c, d} may start before a has finished.
        a = program.source(name="a")
        b = program.map(program.by("rebalance", a), name="b")
        c = program.source(name="c")
        program.sink(b, c, name="d")
        job = program.job()
        edges = tuple(replace(e, blocking=job.vertex(e.source).name == "a") for e in job.edges)
        graph = ExecutionGraph(JobGraph("j", job.vertices, edges))
        strategy = scheduling_strategy("pipelined-region", graph)
        assert [s.job_vertex.name for s in strategy.next()] == ["a"]
        bring(graph.vertices[0].subtasks[0], S.FINISHED)
        assert [s.job_vertex.name for s in strategy.next()] == ["b", "c", "d"]


@given(
    st.sampled_from(sorted(SCHEDULERS)),
    st.integers(1, 3),
    st.lists(st.sampled_from(["rebalance", "rescale", "forward"]), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_every_strategy_deploys_everything_once_and_in_a_safe_order(
    new_program: Any, name: str, parallelism: int, partitioners: list[str], blocks: list[bool]
) -> None:
    program = new_program()
    last = program.source()
    for partitioner in partitioners:
        last = program.map(program.by(partitioner, last))
    program.sink(last)
    job = program.job(parallelism, chaining=False)
    edges = tuple(replace(e, blocking=b) for e, b in zip(job.edges, blocks, strict=False))
    graph = ExecutionGraph(JobGraph("j", job.vertices, edges))
    strategy: SchedulingStrategy = scheduling_strategy(name, graph)
    deployed: list[ExecutionVertex] = []
    while (subtasks := strategy.next()) != []:
        for subtask in subtasks:
            for edge in edges:
                if edge.target == subtask.job_vertex.id and edge.blocking and name != "eager":
                    producers = graph.vertex(edge.source).subtasks
                    ends = {producers[i].state for i in graph.producers_of(edge, subtask.subtask)}
                    assert ends == {S.FINISHED}
        deployed += subtasks
        for subtask in subtasks:
            bring(subtask, S.RUNNING)
        if strategy.next() == []:  # only now, so that pipelined consumers do not need a finished producer
            for subtask in deployed:
                bring(subtask, S.FINISHED)
    assert sorted(shown(deployed)) == sorted(shown(list(graph.subtasks())))
