"""Messages about the keys that come to tasks: clients to the job manager, the job manager to workers, and back."""

from __future__ import annotations

from typing import ClassVar

from sluiceway.monitoring.key_samples import KeySample
from sluiceway.runtime.messages.base import Answer, JobMessage, Request

__all__ = ["JobKeysSampled", "KeysSampled", "SampleJobKeys", "SampleKeys"]


class SampleJobKeys(Request, frozen=True):
    """Client to job manager: count the keys that come to some vertices, for some seconds; empty: to all."""

    job: str
    vertices: list[int]
    seconds: float


class JobKeysSampled(Answer, frozen=True):
    """Job manager to client: the answer to :class:`SampleJobKeys`. ``problems`` are of workers that gave none."""

    large: ClassVar[bool] = True
    samples: list[KeySample]
    problems: list[str]


class SampleKeys(JobMessage, frozen=True):
    """Job manager to worker: count the keys that come to its tasks of some vertices, for some seconds."""

    number: int
    vertices: list[int]
    seconds: float


class KeysSampled(JobMessage, frozen=True):
    """Worker to job manager: the answer to :class:`SampleKeys`; without ``samples`` there is a ``problem``."""

    number: int
    worker: str
    samples: list[KeySample] | None
    problem: str
