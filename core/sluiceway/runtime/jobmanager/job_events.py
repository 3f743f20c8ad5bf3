"""Events of a job for listeners: checkpoints that have ended, and completed restarts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sluiceway.clock import Clock
from sluiceway.engine import JobFailure
from sluiceway.graph import Execution, ExecutionState, ExecutionVertex, JobGraph
from sluiceway.metrics import CheckpointInfo, RestartInfo
from sluiceway.runtime.jobmanager.checkpoint_records import CheckpointRecord, Subtask
from sluiceway.runtime.jobmanager.job_description import checkpoint_infos, failure_info

__all__ = ["JobEventListener", "JobEvents"]


class JobEventListener(Protocol):
    """Listener to the events of a job, in the job master's thread. Must not raise and must not block."""

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        """Handle a checkpoint or savepoint that was completed or has failed."""

    def restart_ended(self, restart: RestartInfo) -> None:
        """Handle a restart, once its subtasks run again or never will."""


class _Restart:
    def __init__(self, failure: JobFailure, attempts: dict[Subtask, int]) -> None:
        self.failure = failure
        self.attempts = attempts  # the last ones before it


class JobEvents:
    """Builder of events for the listeners. Without a listener it keeps nothing. From the job master's thread.

    Args:
        graph: the job.
        clock: for time stamps.
    """

    def __init__(self, graph: JobGraph, clock: Clock) -> None:
        self._graph = graph
        self._clock = clock
        self._listeners: list[JobEventListener] = []
        self._restarts: list[_Restart] = []

    def listen(self, listener: JobEventListener) -> None:
        """Register a listener."""
        self._listeners.append(listener)

    def checkpoint_ended(self, record: CheckpointRecord) -> None:
        """Notify listeners of a checkpoint that was completed or has failed."""
        if self._listeners:
            for checkpoint in checkpoint_infos(self._graph, [record]):
                for listener in self._listeners:
                    listener.checkpoint_ended(checkpoint)

    def failed(self, failure: JobFailure, restarted: Iterable[ExecutionVertex]) -> None:
        """Record a failure, and the subtasks that are restarted because of it."""
        if not self._listeners:
            return
        restart = _Restart(failure, {(v.job_vertex.id, v.subtask): v.current.attempt for v in restarted})
        # A failure of subtasks that were being restarted ends that restart.
        for before in [r for r in self._restarts if not r.attempts.keys().isdisjoint(restart.attempts)]:
            self._over(before, "failed")
        if restart.attempts:
            self._restarts.append(restart)
        else:
            self._tell(restart, "given up")

    def state_changed(self, execution: Execution, state: ExecutionState) -> None:
        """Record a state change of an attempt."""
        if not self._restarts or state not in (ExecutionState.RUNNING, ExecutionState.FINISHED):
            return
        where = execution.vertex_id, execution.subtask
        for restart in list(self._restarts):
            before = restart.attempts.get(where)
            if before is not None and execution.attempt > before:
                del restart.attempts[where]
                if not restart.attempts:
                    self._over(restart, "running")

    def ended(self) -> None:
        """Handle the end of the job."""
        for restart in list(self._restarts):
            self._over(restart, "ended")

    def _over(self, restart: _Restart, outcome: str) -> None:
        self._restarts.remove(restart)
        self._tell(restart, outcome)

    def _tell(self, restart: _Restart, outcome: str) -> None:
        told = RestartInfo(failure_info(restart.failure), outcome, self._clock.now_ms())
        for listener in self._listeners:
            listener.restart_ended(told)
