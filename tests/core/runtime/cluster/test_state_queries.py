"""Queries of live state go to the subtask that has the key now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

import sluiceway as sw
from sluiceway.clock import SystemClock
from sluiceway.graph import ExecutionGraph, ExecutionState, JobGraph, build_job_graph
from sluiceway.graph.rescaling import rescaled
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.runtime.cluster.os_platform import Platform
from sluiceway.runtime.cluster.state_queries import StateReads
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import AskState
from sluiceway.runtime.messages.workers import ReadState

KEYS = [f"k{n}" for n in range(32)]


class Master:
    """A job master's graph, its attempts, all of them running, and the messages that it has sent."""

    def __init__(self, graph: JobGraph) -> None:
        self.sent: list[Message] = []
        self.use(graph)

    def use(self, graph: JobGraph) -> None:
        self.graph = graph
        self.executions = ExecutionGraph(graph, job_id=f"{graph.vertices[0].parallelism}")
        for vertex in self.executions.subtasks():
            for old, new in (
                (ExecutionState.CREATED, ExecutionState.SCHEDULED),
                (ExecutionState.SCHEDULED, ExecutionState.DEPLOYING),
                (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING),
                (ExecutionState.INITIALIZING, ExecutionState.RUNNING),
            ):
                assert vertex.current.transition(old, new, 0)

    def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.fixture
def loop() -> Iterator[TaskletLoop]:
    loop, poller = Platform().loop(SystemClock())
    yield loop
    poller.close()


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_after_a_rescale_the_subtask_that_has_the_key_is_asked(loop: TaskletLoop, parallelism: int) -> None:
    flow = sw.Pipeline("job", parallelism=2, max_parallelism=8)
    flow.generate(rate=1).key_by(str).count().uid("count").print()
    graph = build_job_graph(flow.graph())
    master = Master(graph)
    reads = StateReads("job", 1, cast("JobMaster", master), loop)
    master.use(rescaled(graph, parallelism, {}))
    (vertex,) = (v for v in master.graph.vertices if any(n.uid == "count" for n in v.nodes))
    for key in KEYS:
        reads.ask(AskState(1, "job", "count", "count", key, "", 60.0), lambda found, problem: None)
        subtask = subtask_for_key_group(key_group(key, 8), parallelism, 8)
        (message,) = master.sent
        assert isinstance(message, ReadState)
        assert message.attempt == master.executions.subtask(vertex.id, subtask).current.attempt_id
        master.sent.clear()
