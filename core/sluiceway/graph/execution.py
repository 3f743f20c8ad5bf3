"""One run of one subtask, and the states it goes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, TypeAlias

__all__ = ["Execution", "ExecutionState", "StateListener"]


class ExecutionState(Enum):
    """Where an execution is in its life."""

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
        """Whether nothing follows."""
        return self in _ENDED


_ENDED: Final = frozenset({ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED})

_S = ExecutionState
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
    """One attempt to run one subtask. Not thread-safe: belongs to whoever owns the execution graph.

    Attributes:
        vertex_id: id of the job vertex.
        vertex_name: its name, for messages.
        subtask: index of the subtask.
        attempt: 0 for the first run, one more after each restart.
        attempt_id: unique within the execution graph.
        timestamps: when each state was entered, in ms as the caller gave them.
        failure: why it failed, or None.
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
        """Its state."""
        return self._state

    def transition(self, expected: ExecutionState, new: ExecutionState, at_ms: int) -> bool:
        """Go to ``new`` if the state is ``expected`` and ``new`` may follow it; say whether that happened."""
        if self._state is not expected or new not in _NEXT[expected]:
            return False
        self._state = new
        self.timestamps[new] = at_ms
        if self._listener is not None:
            self._listener(self, expected, new)
        return True

    def cancel(self, at_ms: int) -> bool:
        """Ask for its end: at once where nothing was submitted yet, else by way of CANCELING.

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
        """Take what the worker says of it; False where that comes too late or out of order.

        A task that finishes while it is being cancelled counts as cancelled.
        """
        if new is ExecutionState.FAILED:
            return self.fail(cause, at_ms)
        if new is ExecutionState.FINISHED and self._state is ExecutionState.CANCELING:
            new = ExecutionState.CANCELED
        return self.transition(self._state, new, at_ms)

    def __repr__(self) -> str:
        return f"<{self.vertex_name} [{self.subtask}] attempt {self.attempt}: {self._state.value}>"
