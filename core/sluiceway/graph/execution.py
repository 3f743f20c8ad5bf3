"""Execution: one run of one subtask, and its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, TypeAlias

__all__ = ["Execution", "ExecutionState", "StateListener"]


class ExecutionState(Enum):
    """State of an execution."""

    CREATED = "created"
    SCHEDULED = "scheduled"
    DEPLOYING = "deploying"
    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELING = "canceling"
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True if no other state follows."""
        return self in _ENDED


_ENDED: Final = frozenset({ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED})

_S = ExecutionState
# FAILED may come at any time. What no worker has got yet is cancelled at once, without CANCELING.
_NEXT: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = {
    _S.CREATED: frozenset({_S.SCHEDULED, _S.CANCELED, _S.FAILED}),
    _S.SCHEDULED: frozenset({_S.DEPLOYING, _S.CANCELED, _S.FAILED}),
    _S.DEPLOYING: frozenset({_S.INITIALIZING, _S.CANCELING, _S.FAILED}),
    _S.INITIALIZING: frozenset({_S.RUNNING, _S.CANCELING, _S.FAILED}),
    _S.RUNNING: frozenset({_S.FINISHED, _S.CANCELING, _S.FAILED}),
    _S.CANCELING: frozenset({_S.CANCELED, _S.FAILED}),
    _S.FINISHED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
}

StateListener: TypeAlias = "Callable[[Execution, ExecutionState, ExecutionState], None]"
"""Called after each change with the execution, its old and its new state, in the thread that made it."""


class Execution:
    """Attempt to run one subtask. Not thread-safe: belongs to the owner of the execution graph.

    Attributes:
        vertex_id: id of the job vertex.
        vertex_name: its name, for messages.
        subtask: index of the subtask.
        attempt: 0 for the first run, one more after each restart.
        attempt_id: unique within the execution graph.
        timestamps: time at which each state was entered, in ms, as given by the caller.
        failure: cause of its failure, or None.
    """

    def __init__(
        self,
        vertex_id: int,
        vertex_name: str,
        subtask: int,
        attempt: int,
        attempt_id: str,
        at_ms: int,
        listener: StateListener | None = None,
    ) -> None:
        self.vertex_id = vertex_id
        self.vertex_name = vertex_name
        self.subtask = subtask
        self.attempt = attempt
        self.attempt_id = attempt_id
        self.timestamps: dict[ExecutionState, int] = {ExecutionState.CREATED: at_ms}
        self.failure: BaseException | None = None
        self._state = ExecutionState.CREATED
        self._listener = listener

    @property
    def state(self) -> ExecutionState:
        """Current state."""
        return self._state

    def transition(self, expected: ExecutionState, new: ExecutionState, at_ms: int) -> bool:
        """Change to ``new`` if the state is ``expected`` and ``new`` may follow it; return whether it changed."""
        if self._state is not expected or new not in _NEXT[expected]:
            return False
        self._state = new
        self.timestamps[new] = at_ms
        if self._listener is not None:
            self._listener(self, expected, new)
        return True

    def cancel(self, at_ms: int) -> bool:
        """Cancel it: at once where nothing was submitted yet, else by way of CANCELING.

        Returns:
            whether the state changed; False where it had ended or was being cancelled already.
        """
        if self._state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            return self.transition(self._state, ExecutionState.CANCELED, at_ms)
        return self.transition(self._state, ExecutionState.CANCELING, at_ms)

    def fail(self, cause: BaseException | None, at_ms: int) -> bool:
        """Record a failure; False where it had ended already."""
        if self._state.ended:
            return False
        self.failure = cause
        return self.transition(self._state, ExecutionState.FAILED, at_ms)

    def report(self, new: ExecutionState, at_ms: int, cause: BaseException | None = None) -> bool:
        """Apply a worker's report; return False where it is late or out of order.

        A task that finishes while it is being cancelled counts as cancelled.
        """
        if new is ExecutionState.FAILED:
            return self.fail(cause, at_ms)
        if new is ExecutionState.FINISHED and self._state is ExecutionState.CANCELING:
            new = ExecutionState.CANCELED
        return self.transition(self._state, new, at_ms)

    def __repr__(self) -> str:
        return f"<{self.vertex_name} [{self.subtask}] attempt {self.attempt}: {self._state.value}>"
