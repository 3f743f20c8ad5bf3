"""Events of a job for those who listen: checkpoints that have ended, and restarts that are over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sluiceway.clock import Clock
from sluiceway.engine import JobFailure
from sluiceway.graph import Execution, ExecutionState, ExecutionVertex, JobGraph
from sluiceway.monitoring.job_events import CheckpointInfo, RestartInfo
from sluiceway.runtime.jobmanager.checkpoint_records import CheckpointRecord, Subtask
from sluiceway.runtime.jobmanager.job_description import checkpoint_infos, failure_info

__all__ = ["JobEventListener", "JobEvents"]


class JobEventListener(Protocol):
    """Takes the events of a job, in the job master's thread. Must not raise and must not block."""

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        """Take a checkpoint or savepoint that was completed or has failed."""

    def restart_ended(self, restart: RestartInfo) -> None:
        """Take a restart, once its subtasks run again or never will."""


class _Restart:
    def __init__(self, failure: JobFailure, attempts: dict[Subtask, int]) -> None:
        self.failure = failure
        self.attempts = attempts  # the last ones before it


class JobEvents:
    """Puts together what listeners are told. Without a listener it keeps nothing. Job master's thread.

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
        """Tell a listener of what happens from now on."""
        self._listeners.append(listener)

    def checkpoint_ended(self, record: CheckpointRecord) -> None:
        """A checkpoint was completed or has failed."""
        if self._listeners:
            for checkpoint in checkpoint_infos(self._graph, [record]):
                for listener in self._listeners:
                    listener.checkpoint_ended(checkpoint)

    def failed(self, failure: JobFailure, restarted: Iterable[ExecutionVertex]) -> None:
        """Something has failed, and because of that some subtasks will be restarted."""
        if not self._listeners:
            return
        restart = _Restart(failure, {(v.job_vertex.id, v.subtask): v.current.attempt for v in restarted})
        for before in [r for r in self._restarts if not r.attempts.keys().isdisjoint(restart.attempts)]:
            self._over(before, "failed")
        if restart.attempts:
            self._restarts.append(restart)
        else:
            self._tell(restart, "given up")

    def state_changed(self, execution: Execution, state: ExecutionState) -> None:
        """An attempt of a subtask has another state."""
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
        """The job has ended."""
        for restart in list(self._restarts):
            self._over(restart, "ended")

    def _over(self, restart: _Restart, outcome: str) -> None:
        self._restarts.remove(restart)
        self._tell(restart, outcome)

    def _tell(self, restart: _Restart, outcome: str) -> None:
        told = RestartInfo(failure_info(restart.failure), outcome, self._clock.now_ms())
        for listener in self._listeners:
            listener.restart_ended(told)
