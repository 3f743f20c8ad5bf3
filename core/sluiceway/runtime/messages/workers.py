"""Messages between the job manager and the processes of a cluster: workers and standbys."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from sluiceway.metrics import WorkerMetrics
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.messages.base import JobMessage, Message, TaskMessage
from sluiceway.runtime.messages.figures import TaskFigures

__all__ = [
    "FoundState",
    "Heartbeat",
    "HoldResults",
    "JobEnded",
    "Leads",
    "Logged",
    "ReadState",
    "Register",
    "RegisterStandby",
    "ReportMetrics",
    "Results",
    "SampleStacks",
    "StacksSampled",
    "StateRead",
    "StateValue",
    "StopStandby",
    "StopWorker",
    "SubmitJob",
    "WorkerAddresses",
]


class Register(Message, frozen=True):
    """Worker to job manager: registration.

    ``address`` is where its ``transport`` for data can be reached, by the transport's own notation. ``epoch`` is
    that of the job manager that it was started for. If that is gone, and it comes to another one instead, none of
    its earlier tasks is there any more, and ``line`` is the path of a socket on which it waits for the line.
    """

    worker: str
    pid: int
    slots: int
    address: str
    epoch: int = 0
    line: str = ""
    transport: str = ""


class Heartbeat(Message, frozen=True):
    """Both directions: the sender is alive. ``count`` increases by one each time."""

    count: int


class StopWorker(Message, frozen=True):
    """Job manager to worker: exit. ``epoch`` is that of the job manager."""

    epoch: int = 0


class SubmitJob(JobMessage, frozen=True):
    """Job manager to worker: a program. ``epoch`` is that of the job master that leads the job."""

    large: ClassVar[bool] = True
    program: bytes


class WorkerAddresses(Message, frozen=True):
    """Job manager to worker: by worker, where its transport can be reached; sent ahead of deployments."""

    addresses: dict[str, str]


class JobEnded(JobMessage, frozen=True):
    """Job manager to worker: remove the job."""


class Logged(Message, frozen=True):
    """Worker to job manager: lines of its log and of what it has printed, each a JSON object."""

    large: ClassVar[bool] = True
    lines: bytes


class ReportMetrics(JobMessage, frozen=True):
    """Worker to job manager: figures of a job's tasks on that worker, and of its process."""

    figures: list[TaskFigures]
    process: WorkerMetrics | None = None


class Results(JobMessage, frozen=True):
    """Worker to job manager: pickled records for an object of the program that runs the job."""

    large: ClassVar[bool] = True
    number: int
    records: bytes


class HoldResults(JobMessage, frozen=True):
    """Job manager to worker: the program that runs the job has enough records for now, or wants more again."""

    number: int
    hold: bool


class StateValue(msgspec.Struct, frozen=True):
    """State of a key in a namespace; each part in the form of snapshots."""

    namespace: bytes
    key: bytes
    values: list[bytes]


class FoundState(msgspec.Struct, frozen=True):
    """Value of a key in a state, with its :class:`~.state.StateMeta`."""

    name: str
    kind: str
    serializer: str
    version: int
    type: str
    expires: bool
    declared: str
    values: list[StateValue]


class ReadState(TaskMessage, frozen=True):
    """Job manager to worker: what a key has in a state, now. ``namespace`` is JSON, or empty for all of them.

    ``keys`` are what the key that was given as ``text`` may stand for, in the order of preference.
    """

    number: int
    uid: str
    state: str
    text: str
    keys: list[bytes]
    namespace: str


class StateRead(TaskMessage, frozen=True):
    """Worker to job manager: the answer to :class:`ReadState`; ``found`` is None where there is a ``problem``.

    ``kind`` is that of the error, as in :mod:`~sluiceway.runtime.messages.error_kinds`.
    """

    large: ClassVar[bool] = True
    number: int
    found: FoundState | None
    problem: str
    kind: str = ""


class SampleStacks(JobMessage, frozen=True):
    """Job manager to worker: take samples of the stacks of its threads for some seconds, so many per second."""

    number: int
    seconds: float
    rate: float


class StacksSampled(JobMessage, frozen=True):
    """Worker to job manager: the answer to :class:`SampleStacks`; without ``samples`` there is a ``problem``."""

    large: ClassVar[bool] = True
    number: int
    worker: str
    samples: StackSamples | None
    problem: str


class RegisterStandby(Message, frozen=True):
    """Standby to job manager: registration; ``pid`` is its process id."""

    pid: int


class Leads(Message, frozen=True):
    """Job manager to standby: heartbeat of the leader's loop."""

    epoch: int


class StopStandby(Message, frozen=True):
    """Job manager to standby: exit, as the cluster is stopped."""
