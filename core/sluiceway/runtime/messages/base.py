"""Base structs of control messages, by what a message is about."""

from __future__ import annotations

from typing import ClassVar

import msgspec

__all__ = ["Answer", "JobMessage", "Message", "Request", "TaskMessage", "TasksMessage"]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Control message. A struct in one of the modules of this package is part of the protocol.

    Attributes:
        large: True if it may be longer than a frame, as one with user's objects may: it is sent in several then.
    """

    large: ClassVar[bool] = False


class JobMessage(Message, frozen=True):
    """Message about a job, as the job master of an epoch knows it."""

    job: str
    epoch: int


class TaskMessage(JobMessage, frozen=True):
    """Message about one attempt to run a subtask."""

    attempt: str


class TasksMessage(JobMessage, frozen=True):
    """Message about some attempts; each worker is sent those that run there."""

    attempts: list[str]


class Request(Message, frozen=True):
    """Message of a client, which waits for an :class:`Answer` with the same number."""

    request: int


class Answer(Message, frozen=True):
    """Message to a client that waits for it; it has no handler."""

    request: int
