"""Answers to clients that have requested a checkpoint, a savepoint or another parallelism of a job."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.monitoring.infos import RescaleInfo
from sluiceway.runtime.jobmanager.job_description import told_error
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.clients import (
    CheckpointTaken,
    JobRescaled,
    Refused,
    RescaleJob,
    TakeCheckpoint,
    TakeSavepoint,
)

__all__ = ["RescaleAnswer", "checkpoint_answer", "savepoint_refusal"]


def checkpoint_answer(message: TakeCheckpoint, checkpoint_id: int, problem: BaseException | None) -> Message:
    """Return the answer to a request for a checkpoint, which has completed or has a problem."""
    if problem is None:
        return CheckpointTaken(message.request, checkpoint_id)
    reason = f"no checkpoint of job {message.job!r}: {told_error(problem)}"
    return Refused.by(message.request, problem, reason)


def savepoint_refusal(message: TakeSavepoint, problem: BaseException) -> Message:
    """Return the answer to a request for a savepoint that could not be taken."""
    return Refused.by(message.request, problem, f"no savepoint of job {message.job!r}: {told_error(problem)}")


class RescaleAnswer:
    """Sender of one answer: at the end of the rescale, or once it is accepted if the client does not wait.

    Args:
        message: the request.
        send: sends the answer; called in the job master's thread.
    """

    def __init__(self, message: RescaleJob, send: Callable[[Message], None]) -> None:
        self._message = message
        self._send = send
        self._answered = False

    def accepted(self, info: RescaleInfo) -> None:
        """Answer a client that does not wait."""
        if not self._message.wait:
            self._answer(JobRescaled(self._message.request, info))

    def done(self, info: RescaleInfo | None, problem: BaseException | None) -> None:
        """Answer a client that waits for the end."""
        if info is not None:
            self._answer(JobRescaled(self._message.request, info))
        elif problem is not None:
            reason = f"job {self._message.job!r}: {told_error(problem)}"
            cause = problem.__cause__ or problem  # a disk that is full is no mistake of who asked
            self._answer(Refused.by(self._message.request, cause, reason))

    def _answer(self, answer: Message) -> None:
        if not self._answered:
            self._answered = True
            self._send(answer)
