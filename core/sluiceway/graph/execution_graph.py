"""Execution graph: every subtask of a job, its attempts, and its connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sluiceway.errors import GraphError
from sluiceway.graph.edge_wiring import consumers_of_subtask, producers_of_subtask
from sluiceway.graph.execution import Execution, ExecutionState, StateListener
from sluiceway.graph.job_graph import JobEdge, JobGraph, JobVertex

__all__ = ["ExecutionGraph", "ExecutionJobVertex", "ExecutionVertex"]

_PAST: Final = 8
"""Earlier attempts of a subtask that are known: a job that is restarted for ever must not remember them all."""


class ExecutionVertex:
    """Subtask of a job vertex, with its current attempt and those before it.

    Attributes:
        job_vertex: the job vertex.
        subtask: index of the subtask.
        current: the current attempt.
        past: the last few attempts before it, oldest first.
    """

    def __init__(
        self, graph: ExecutionGraph, job_vertex: JobVertex, subtask: int, at_ms: int, attempt: int = 0
    ) -> None:
        self._graph = graph
        self.job_vertex = job_vertex
        self.subtask = subtask
        self.past: list[Execution] = []
        self.current = self._new_execution(attempt, at_ms)

    @property
    def state(self) -> ExecutionState:
        """State of the current attempt."""
        return self.current.state

    def restart(self, at_ms: int) -> Execution:
        """Begin a new attempt.

        Raises:
            GraphError: the current attempt has not ended.
        """
        if not self.current.state.ended:
            raise GraphError(f"{self!r} cannot be restarted before it has ended: cancel it first")
        self._remember([self.current])
        self.current = self._new_execution(self.current.attempt + 1, at_ms)
        return self.current

    def _remember(self, ended: list[Execution]) -> None:
        self.past += ended
        while len(self.past) > _PAST:
            self._graph._forget(self.past.pop(0))

    def _adopt(self, earlier: ExecutionVertex) -> None:
        """Take the attempts of the same subtask in an earlier graph of the job as those before the current one."""
        attempts = [*earlier.past, earlier.current]
        self._graph._executions.update((attempt.attempt_id, attempt) for attempt in attempts)
        self._remember(attempts)

    def _new_execution(self, attempt: int, at_ms: int) -> Execution:
        return self._graph._register(self.job_vertex, self.subtask, attempt, at_ms)

    def __repr__(self) -> str:
        return repr(self.current)


class ExecutionJobVertex:
    """Subtasks of one job vertex.

    Attributes:
        job_vertex: the job vertex.
        subtasks: one per index.
    """

    def __init__(self, graph: ExecutionGraph, job_vertex: JobVertex, at_ms: int, attempt: int = 0) -> None:
        self.job_vertex = job_vertex
        self.subtasks = tuple(
            ExecutionVertex(graph, job_vertex, index, at_ms, attempt) for index in range(job_vertex.parallelism)
        )

    @property
    def id(self) -> int:
        """Id of the job vertex."""
        return self.job_vertex.id

    @property
    def name(self) -> str:
        """Name of the job vertex."""
        return self.job_vertex.name


class ExecutionGraph:
    """A job while it runs: pure bookkeeping, without clock, threads or I/O.

    Not thread-safe: one owner makes all calls. Times are given by the caller, in ms.

    Args:
        job_graph: what to expand.
        job_id: goes into the attempt ids, so that reports from another run of the same job are told apart.
        listener: called after every change of an execution's state.
        at_ms: now.
        before: the graph of the same job at another parallelism, whose attempts have all ended; None: there is
            none. Attempts are counted on from there, and the last of each subtask that is still there are known.

    Attributes:
        late_updates: how many updates were ignored because they came late, out of order, or for an attempt
            that is not known.
    """

    def __init__(
        self,
        job_graph: JobGraph,
        *,
        job_id: str = "",
        listener: StateListener | None = None,
        at_ms: int = 0,
        before: ExecutionGraph | None = None,
    ) -> None:
        self.job_graph = job_graph
        self.late_updates = 0
        # One number for all: a subtask that was there before the one before must not have an attempt once more.
        self._first_attempt = 0 if before is None else before._next_attempt()
        self._job_id = job_id or job_graph.job_name
        self._listener = listener
        self._vertices: dict[int, ExecutionJobVertex] = {}
        self._edges: dict[str, JobEdge] = {}
        self._executions: dict[str, Execution] = {}
        self.attach(job_graph.vertices, job_graph.edges, at_ms=at_ms)
        for earlier in () if before is None else before.subtasks():
            subtasks = self._vertices[earlier.job_vertex.id].subtasks
            if earlier.subtask < len(subtasks):
                subtasks[earlier.subtask]._adopt(earlier)

    # ---- what is in it ------------------------------------------------------------------------------------

    def attach(self, vertices: Iterable[JobVertex], edges: Iterable[JobEdge] = (), *, at_ms: int = 0) -> None:
        """Add vertices and the results between them.

        Raises:
            GraphError: a vertex or a result with that id is there already, or an edge ends at none.
        """
        for vertex in vertices:
            if vertex.id in self._vertices:
                raise GraphError(
                    f"vertex id {vertex.id} is attached twice: as {self._vertices[vertex.id].name!r} and as"
                    f" {vertex.name!r}"
                )
            self._vertices[vertex.id] = ExecutionJobVertex(self, vertex, at_ms, self._first_attempt)
        for edge in edges:
            if edge.id in self._edges:
                raise GraphError(f"result id {edge.id!r} is attached twice: every exchange needs its own")
            for end in (edge.source, edge.target):
                if end not in self._vertices:
                    raise GraphError(f"result {edge.id!r} is connected to vertex {end}, which is not attached")
            self._edges[edge.id] = edge

    @property
    def vertices(self) -> tuple[ExecutionJobVertex, ...]:
        """Job vertices, in topological order."""
        return tuple(self._vertices.values())

    @property
    def edges(self) -> tuple[JobEdge, ...]:
        """Exchanges between them."""
        return tuple(self._edges.values())

    def vertex(self, vertex_id: int) -> ExecutionJobVertex:
        """Return the job vertex with that id. Raises KeyError."""
        return self._vertices[vertex_id]

    def subtask(self, vertex_id: int, index: int) -> ExecutionVertex:
        """Return one subtask. Raises KeyError or IndexError."""
        return self._vertices[vertex_id].subtasks[index]

    def subtasks(self) -> Iterator[ExecutionVertex]:
        """Yield all subtasks, vertex after vertex."""
        for vertex in self._vertices.values():
            yield from vertex.subtasks

    def execution(self, attempt_id: str) -> Execution | None:
        """Return an attempt, current or one of the last few before it, or None."""
        return self._executions.get(attempt_id)

    def _next_attempt(self) -> int:
        return 1 + max((subtask.current.attempt for subtask in self.subtasks()), default=-1)

    def _register(self, vertex: JobVertex, subtask: int, attempt: int, at_ms: int) -> Execution:
        attempt_id = f"{self._job_id}/{vertex.id}/{subtask}/{attempt}"
        execution = Execution(vertex.id, vertex.name, subtask, attempt, attempt_id, at_ms, self._listener)
        self._executions[attempt_id] = execution
        return execution

    def _forget(self, execution: Execution) -> None:
        del self._executions[execution.attempt_id]

    # ---- wiring -------------------------------------------------------------------------------------------

    def producers_of(self, edge: JobEdge, consumer: int) -> range:
        """Return the producing subtasks that feed subtask ``consumer`` along an edge, in channel order."""
        return producers_of_subtask(edge.distribution, *self._widths(edge), consumer)

    def consumers_of(self, edge: JobEdge, producer: int) -> range:
        """Return the consuming subtasks that subtask ``producer`` feeds along an edge, in channel order."""
        return consumers_of_subtask(edge.distribution, *self._widths(edge), producer)

    def _widths(self, edge: JobEdge) -> tuple[int, int]:
        return (
            self._vertices[edge.source].job_vertex.parallelism,
            self._vertices[edge.target].job_vertex.parallelism,
        )

    # ---- what happens -------------------------------------------------------------------------------------

    def update(self, attempt_id: str, new: ExecutionState, at_ms: int, cause: BaseException | None = None) -> bool:
        """Take a worker's report about an attempt; late, illegal and unknown ones are counted and ignored."""
        execution = self._executions.get(attempt_id)
        if execution is None or not execution.report(new, at_ms, cause):
            self.late_updates += 1
            return False
        return True

    def restart(self, subtasks: Iterable[ExecutionVertex], at_ms: int) -> list[Execution]:
        """Begin a new attempt of each.

        Raises:
            GraphError: one of them has not ended; then none is restarted.
        """
        wanted = list(subtasks)
        for subtask in wanted:
            if not subtask.state.ended:
                raise GraphError(f"{subtask!r} cannot be restarted before it has ended: cancel it first")
        return [subtask.restart(at_ms) for subtask in wanted]
