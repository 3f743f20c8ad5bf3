from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluiceway.errors import GraphError
from sluiceway.graph import Execution, ExecutionGraph, ExecutionState, InputRef, JobGraph
from sluiceway.graph.edge_wiring import consumers_of_subtask, producers_of_subtask
from sluiceway.partitioner import Distribution
from sluiceway.scheduler import pipelined_regions

S = ExecutionState
ALIVE = [S.CREATED, S.SCHEDULED, S.DEPLOYING, S.INITIALIZING, S.RUNNING]


def wordcount(program: Any, parallelism: int = 2) -> JobGraph:
    program.sink(program.reduce(program.source(parallelism=1)))
    return program.job(parallelism)


def advance(execution: Execution, to: ExecutionState) -> None:
    for old, new in itertools.pairwise(ALIVE):
        if execution.state is to:
            return
        assert execution.transition(old, new, 0)


class TestExpansion:
    def test_one_execution_vertex_per_subtask(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program), at_ms=5)
        assert [len(v.subtasks) for v in graph.vertices] == [1, 2]
        assert [v.name for v in graph.vertices] == ["source(Numbers)", "reduce(same) -> sink(Drain)"]
        assert {s.state for s in graph.subtasks()} == {S.CREATED}
        current = graph.subtask(1, 1).current
        assert (current.vertex_id, current.subtask, current.attempt) == (1, 1, 0)
        assert current.timestamps == {S.CREATED: 5}
        assert graph.execution(current.attempt_id) is current
        assert graph.vertex(1).id == 1

    def test_attempt_ids_are_unique(self, program: Any) -> None:
        job = wordcount(program, 4)
        graph = ExecutionGraph(job)
        ids = [s.current.attempt_id for s in graph.subtasks()]
        assert len(set(ids)) == 5
        other = ExecutionGraph(job, job_id="another run")
        assert not set(ids) & {s.current.attempt_id for s in other.subtasks()}

    def test_a_vertex_attached_twice(self, program: Any) -> None:
        job = wordcount(program)
        graph = ExecutionGraph(job)
        with pytest.raises(GraphError, match=r"vertex id 0 is attached twice: as 'source\(Numbers\)' and as"):
            graph.attach(job.vertices[:1])

    def test_a_result_attached_twice(self, program: Any) -> None:
        job = wordcount(program)
        graph = ExecutionGraph(job)
        with pytest.raises(GraphError, match="is attached twice: every exchange needs its own"):
            graph.attach([], job.edges)

    def test_a_result_without_its_ends(self, program: Any) -> None:
        job = wordcount(program)
        with pytest.raises(GraphError, match="connected to vertex 1, which is not attached"):
            ExecutionGraph(JobGraph("j", job.vertices[:1], job.edges))


class TestTransitions:
    def one(self, program: Any, **options: Any) -> tuple[ExecutionGraph, Execution]:
        graph = ExecutionGraph(wordcount(program), **options)
        return graph, graph.subtask(0, 0).current

    def test_the_good_life(self, program: Any) -> None:
        told: list[Any] = []
        graph, execution = self.one(program, listener=lambda e, old, new: told.append((e, old, new)))
        assert execution.transition(S.CREATED, S.SCHEDULED, 1)
        assert execution.transition(S.SCHEDULED, S.DEPLOYING, 2)
        for at, state in enumerate([S.INITIALIZING, S.RUNNING, S.FINISHED], 3):
            assert graph.update(execution.attempt_id, state, at)
        assert execution.timestamps == {
            S.CREATED: 0,
            S.SCHEDULED: 1,
            S.DEPLOYING: 2,
            S.INITIALIZING: 3,
            S.RUNNING: 4,
            S.FINISHED: 5,
        }
        assert [(e.attempt_id, old) for e, old, _ in told] == [(execution.attempt_id, s) for s in ALIVE]
        assert [new for _, _, new in told] == [*ALIVE[1:], S.FINISHED]
        assert graph.late_updates == 0
        assert execution.state.ended

    def test_compare_and_set(self, program: Any) -> None:
        _, execution = self.one(program)
        assert not execution.transition(S.SCHEDULED, S.DEPLOYING, 1)
        assert execution.state is S.CREATED
        assert not execution.transition(S.CREATED, S.RUNNING, 1)
        assert execution.state is S.CREATED
        assert S.RUNNING not in execution.timestamps

    @pytest.mark.parametrize("state", ALIVE)
    def test_cancel(self, program: Any, state: ExecutionState) -> None:
        _, execution = self.one(program)
        advance(execution, state)
        assert execution.cancel(9)
        submitted = state not in (S.CREATED, S.SCHEDULED)
        assert execution.state is (S.CANCELING if submitted else S.CANCELED)
        assert not execution.cancel(10)

    def test_a_cancel_while_deploying_wins(self, program: Any) -> None:
        graph, execution = self.one(program)
        advance(execution, S.DEPLOYING)
        execution.cancel(1)
        assert not graph.update(execution.attempt_id, S.INITIALIZING, 2)
        assert not graph.update(execution.attempt_id, S.RUNNING, 2)
        assert execution.state is S.CANCELING
        assert graph.late_updates == 2
        assert graph.update(execution.attempt_id, S.CANCELED, 3)
        assert execution.state is S.CANCELED

    def test_finishing_while_being_cancelled_is_cancelled(self, program: Any) -> None:
        graph, execution = self.one(program)
        advance(execution, S.RUNNING)
        execution.cancel(1)
        assert graph.update(execution.attempt_id, S.FINISHED, 2)
        assert execution.state is S.CANCELED

    @pytest.mark.parametrize("state", ALIVE)
    def test_failure_keeps_its_cause(self, program: Any, state: ExecutionState) -> None:
        graph, execution = self.one(program)
        advance(execution, state)
        cause = ValueError("x")
        assert graph.update(execution.attempt_id, S.FAILED, 1, cause)
        assert execution.failure is cause
        assert not graph.update(execution.attempt_id, S.FAILED, 2, KeyError("later"))
        assert execution.failure is cause
        assert graph.late_updates == 1

    def test_a_failure_while_being_cancelled_is_a_failure(self, program: Any) -> None:
        graph, execution = self.one(program)
        advance(execution, S.RUNNING)
        execution.cancel(1)
        assert graph.update(execution.attempt_id, S.FAILED, 2)
        assert execution.state is S.FAILED

    def test_unknown_attempts_are_counted(self, program: Any) -> None:
        graph, _ = self.one(program)
        assert not graph.update("nobody", S.RUNNING, 1)
        assert graph.late_updates == 1
        assert graph.execution("nobody") is None


class TestRestart:
    def test_only_the_last_few_attempts_are_remembered(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program))
        subtask = graph.subtask(1, 0)
        first = subtask.current
        for at_ms in range(100):
            subtask.current.fail(ValueError("large"), at_ms)
            graph.restart([subtask], at_ms)
        assert [past.attempt for past in subtask.past] == list(range(92, 100))
        assert subtask.current.attempt == 100
        assert graph.execution(first.attempt_id) is None
        assert not graph.update(first.attempt_id, ExecutionState.FINISHED, 200)
        assert graph.execution(subtask.past[0].attempt_id) is subtask.past[0]

    def test_is_a_new_attempt(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program))
        subtask = graph.subtask(1, 0)
        first = subtask.current
        first.fail(None, 1)
        (second,) = graph.restart([subtask], 2)
        assert subtask.current is second
        assert subtask.past == [first]
        assert (second.attempt, second.state) == (1, S.CREATED)
        assert second.attempt_id != first.attempt_id
        assert second.timestamps == {S.CREATED: 2}

    def test_reports_of_the_old_attempt_are_late(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program))
        subtask = graph.subtask(0, 0)
        old = subtask.current.attempt_id
        subtask.current.fail(None, 1)
        graph.restart([subtask], 2)
        assert not graph.update(old, S.RUNNING, 3)
        assert subtask.state is S.CREATED
        assert graph.late_updates == 1

    def test_is_refused_before_the_end_and_then_restarts_none(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program))
        ended, alive = graph.subtask(0, 0), graph.subtask(1, 1)
        ended.current.cancel(1)
        with pytest.raises(
            GraphError, match=r"reduce\(same\) -> sink\(Drain\) \[1\] attempt 0: created.*cancel it"
        ):
            graph.restart([ended, alive], 2)
        assert ended.current.attempt == 0
        with pytest.raises(GraphError, match="before it has ended"):
            alive.restart(3)


class Life(RuleBasedStateMachine):
    """Any sequence of calls keeps an execution on the roads of the specification."""

    ROADS: ClassVar = {
        S.CREATED: {S.SCHEDULED, S.CANCELED, S.FAILED},
        S.SCHEDULED: {S.DEPLOYING, S.CANCELED, S.FAILED},
        S.DEPLOYING: {S.INITIALIZING, S.CANCELING, S.FAILED},
        S.INITIALIZING: {S.RUNNING, S.CANCELING, S.FAILED},
        S.RUNNING: {S.FINISHED, S.CANCELING, S.FAILED},
        S.CANCELING: {S.CANCELED, S.FAILED},
        S.FINISHED: set(),
        S.CANCELED: set(),
        S.FAILED: set(),
    }

    @initialize()
    def begin(self) -> None:
        self.seen = [S.CREATED]
        self.execution = Execution(0, "v", 0, 0, "id", 0, self.heard)

    def heard(self, execution: Execution, old: ExecutionState, new: ExecutionState) -> None:
        assert old is self.seen[-1]
        assert new in self.ROADS[old]
        assert execution.state is new
        self.seen.append(new)

    @rule(expected=st.sampled_from(S), new=st.sampled_from(S))
    def transition(self, expected: ExecutionState, new: ExecutionState) -> None:
        before = self.execution.state
        went = self.execution.transition(expected, new, 1)
        assert went is (before is expected and new in self.ROADS[before])

    @rule(new=st.sampled_from(S))
    def report(self, new: ExecutionState) -> None:
        self.execution.report(new, 1)

    @rule()
    def cancel(self) -> None:
        before = self.execution.state
        assert self.execution.cancel(1) is (before in ALIVE)

    @invariant()
    def nothing_happens_unheard(self) -> None:
        if hasattr(self, "execution"):
            assert self.execution.state is self.seen[-1]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)

WIDTHS = st.integers(1, 40)


class TestWiring:
    @given(WIDTHS, WIDTHS, st.sampled_from(Distribution))
    @examples(60, 200)
    def test_both_sides_agree_and_everybody_is_served(
        self, producers: int, consumers: int, distribution: Distribution
    ) -> None:
        forth = [consumers_of_subtask(distribution, producers, consumers, p) for p in range(producers)]
        back = [producers_of_subtask(distribution, producers, consumers, c) for c in range(consumers)]
        pairs = {(p, c) for p, cs in enumerate(forth) for c in cs}
        assert pairs == {(p, c) for c, ps in enumerate(back) for p in ps}
        assert all(len(cs) for cs in forth)
        assert all(len(ps) for ps in back)
        assert {c for _, c in pairs} == set(range(consumers))
        assert {p for p, _ in pairs} == set(range(producers))

    @given(WIDTHS, WIDTHS)
    @examples(60, 200)
    def test_pointwise_shares_are_contiguous_even_and_without_excess(self, producers: int, consumers: int) -> None:
        wide, narrow = max(producers, consumers), min(producers, consumers)
        if producers >= consumers:
            shares = [
                producers_of_subtask(Distribution.POINTWISE, producers, consumers, c) for c in range(consumers)
            ]
        else:
            shares = [
                consumers_of_subtask(Distribution.POINTWISE, producers, consumers, p) for p in range(producers)
            ]
        assert [i for share in shares for i in share] == list(range(wide))
        assert {len(s) for s in shares} <= {wide // narrow, -(-wide // narrow)}

    def test_forward_is_one_to_one(self) -> None:
        shares = [list(producers_of_subtask(Distribution.POINTWISE, 3, 3, c)) for c in range(3)]
        assert shares == [[0], [1], [2]]

    def test_of_the_graph(self, program: Any) -> None:
        graph = ExecutionGraph(wordcount(program, 3))
        (edge,) = graph.edges
        assert list(graph.consumers_of(edge, 0)) == [0, 1, 2]
        assert list(graph.producers_of(edge, 2)) == [0]


class TestRegions:
    def sizes(self, program: Any, parallelism: int, **options: Any) -> list[int]:
        return [len(r) for r in pipelined_regions(ExecutionGraph(program.job(parallelism, **options)))]

    def test_pointwise_pipelines_are_a_region_each(self, program: Any) -> None:
        program.sink(program.map(program.source()))
        assert self.sizes(program, 3, chaining=False) == [3, 3, 3]

    def test_all_to_all_makes_one(self, program: Any) -> None:
        program.sink(program.reduce(program.source()))
        assert self.sizes(program, 3) == [6]

    def test_programs_that_are_not_connected(self, program: Any) -> None:
        program.sink(program.reduce(program.source()))
        program.sink(program.reduce(program.source()))
        assert self.sizes(program, 2) == [4, 4]

    def test_rescale(self, program: Any) -> None:
        program.sink(program.by("rescale", program.source(parallelism=4)), parallelism=2)
        graph = ExecutionGraph(program.job())
        regions = [[(s.job_vertex.id, s.subtask) for s in r] for r in pipelined_regions(graph)]
        assert regions == [[(0, 0), (0, 1), (1, 0)], [(0, 2), (0, 3), (1, 1)]]

    def test_feedback_holds_together(self, program: Any) -> None:
        head = program.iterate(program.source())
        body = program.map(head)
        head.feedback.append(program.by("rebalance", body))
        program.sink(body)
        assert self.sizes(program, 2) == [4]
        assert isinstance(head.feedback[0], InputRef)
