"""Sources of a job: the coordinator of each, and their connection to the tasks that read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sluiceway.graph import ExecutionGraph, JobGraph
from sluiceway.runtime.failures.explanation import add_note, contained
from sluiceway.runtime.jobmanager.job_host import JobHost
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.runtime.messages.base import TaskMessage
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.tasks import AssignSplits, NoMoreSplits, SendReaderEvent
from sluiceway.steps import SourceStep

__all__ = ["JobSources", "ReadingJob"]


class ReadingJob(Protocol):
    """Interface of a job to its sources. Job master's thread.

    Attributes:
        name: name by which tasks address the job.
        epoch: epoch of its job master.
        graph: the job at its present parallelism.
        executions: attempts of its subtasks; anew for each parallelism.
    """

    name: str
    epoch: int
    graph: JobGraph
    executions: ExecutionGraph

    def send(self, message: TaskMessage) -> None:
        """Send a message to its task."""

    def guard(self, action: Callable[[], None], note: str | None = None) -> None:
        """Run an action while the job runs; an exception fails the job, with the note."""


class JobSources:
    """Coordinators of a job's sources. From the job master's thread.

    What an enumerator raises fails the job, with a note that names the source, unless a method says otherwise.

    Args:
        job: the job.
        host: host of the job, with its clock, its timers and its threads for searches.
    """

    def __init__(self, job: ReadingJob, host: JobHost) -> None:
        self._job = job
        self._host = host
        self._coordinators: dict[int, SourceCoordinator] = {}

    def __contains__(self, vertex_id: int) -> bool:
        """Return whether a vertex is a source that was created."""
        return vertex_id in self._coordinators

    def create(self, states: Mapping[str, Any]) -> None:
        """Create the coordinators of all sources, in place of earlier ones, without starting them.

        Args:
            states: state to restore, by uid of the source.
        """
        self._coordinators.clear()
        for vertex in self._job.graph.vertices:
            step = vertex.head.step
            if isinstance(step, SourceStep):
                state = states.get(vertex.uid)
                self._coordinators[vertex.id] = self._coordinator(vertex.id, step, vertex.parallelism, state)

    def start(self) -> None:
        """Start the enumerators."""
        for vertex_id, coordinator in self._coordinators.items():
            self._guarded(vertex_id, coordinator.start)

    def start_or_raise(self) -> None:
        """Start the enumerators; raise what the first one that fails has raised."""
        for vertex_id, coordinator in self._coordinators.items():
            try:
                coordinator.start()
            except BaseException as raised:
                add_note(raised, self._note(vertex_id))
                raise

    def reader_ready(self, vertex_id: int, subtask: int) -> None:
        """Send a reader that runs now its splits; do nothing for a vertex that is no source."""
        coordinator = self._coordinators.get(vertex_id)
        if coordinator is not None:
            self._guarded(vertex_id, lambda: coordinator.reader_ready(subtask))

    def reader_failed(self, vertex_id: int, subtask: int) -> None:
        """Take back the splits of a reader that restarts; do nothing for a vertex that is no source."""
        coordinator = self._coordinators.get(vertex_id)
        if coordinator is not None:
            self._guarded(vertex_id, lambda: coordinator.reader_failed(subtask))

    def split_requested(self, vertex_id: int, subtask: int) -> None:
        """Look for a split for a reader that has none."""
        coordinator = self._coordinators.get(vertex_id)
        if coordinator is not None:
            self._guarded(vertex_id, lambda: coordinator.split_requested(subtask))

    def event_received(self, vertex_id: int, subtask: int, event: Any) -> None:
        """Pass an event of a reader to its enumerator."""
        coordinator = self._coordinators.get(vertex_id)
        if coordinator is not None:
            self._guarded(vertex_id, lambda: coordinator.event_received(subtask, event))

    def snapshot(self) -> dict[str, Any]:
        """Return by uid of a source the splits that its enumerator has not assigned."""
        return {self._job.graph.vertex(id_).uid: c.snapshot() for id_, c in self._coordinators.items()}

    def checkpoint(self, checkpoint_id: int) -> dict[str, Any]:
        """Return the snapshots of the enumerators for a checkpoint, by uid of the source.

        Raises:
            BaseException: what an enumerator has raised.
        """
        snapshots = {}
        for vertex_id, coordinator in self._coordinators.items():
            try:
                state = coordinator.checkpoint(checkpoint_id)
            except BaseException as raised:  # no enumerator may end the process, which runs other jobs, too
                error = contained(raised, "an enumerator")
                add_note(error, self._note(vertex_id))
                raise error from error.__cause__
            if state is not None:  # its first search has not ended
                snapshots[self._job.graph.vertex(vertex_id).uid] = state
        return snapshots

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Notify the coordinators of a completed checkpoint."""
        for coordinator in self._coordinators.values():
            coordinator.checkpoint_completed(checkpoint_id)

    def close(self) -> BaseException | None:
        """Close all enumerators; return the first error."""
        first = None
        for vertex_id, coordinator in self._coordinators.items():
            try:
                coordinator.close()
            except BaseException as error:
                add_note(error, self._note(vertex_id))
                first = first or contained(error, "an enumerator")
        return first

    def _coordinator(self, vertex_id: int, step: SourceStep, parallelism: int, restored: Any) -> SourceCoordinator:
        job, host = self._job, self._host

        # Looked up for each message, as the attempt changes with each restart.
        def attempt(reader: int) -> str:
            return job.executions.subtask(vertex_id, reader).current.attempt_id

        return SourceCoordinator(
            step.source,
            parallelism,
            host.clock,
            assign=lambda reader, splits: job.send(
                AssignSplits(job.name, job.epoch, attempt(reader), Payload(list(splits)))
            ),
            no_more=lambda reader: job.send(NoMoreSplits(job.name, job.epoch, attempt(reader))),
            send_event=lambda reader, event: job.send(
                SendReaderEvent(job.name, job.epoch, attempt(reader), Payload(event))
            ),
            restored=restored,
            post=lambda action, after_s: host.post(lambda: self._guarded(vertex_id, action), after_s),
            search=lambda work, done: host.search(
                work, lambda result, error: self._guarded(vertex_id, lambda: done(result, error))
            ),
        )

    def _guarded(self, vertex_id: int, action: Callable[[], None]) -> None:
        self._job.guard(action, self._note(vertex_id))

    def _note(self, vertex_id: int) -> str:
        return f"in the enumerator of source {self._job.graph.vertex(vertex_id).head.name!r}"
