"""Messages between clients and the job manager of a cluster."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import (
    CheckpointInfo,
    JobDescription,
    JobInfo,
    RescaleInfo,
    StandbyInfo,
    WorkerInfo,
)
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.messages.base import Answer, Request
from sluiceway.runtime.messages.error_kinds import error_of, kind_of
from sluiceway.runtime.messages.workers import FoundState

__all__ = [
    "AskCheckpoints",
    "AskState",
    "AskStatus",
    "CancelJob",
    "CheckpointTaken",
    "Checkpoints",
    "DescribeJob",
    "Done",
    "JobDescribed",
    "JobRescaled",
    "JobSampled",
    "Refused",
    "RescaleJob",
    "SampleJob",
    "SavepointTaken",
    "ShutDown",
    "StateFound",
    "Status",
    "StopJob",
    "SubmitProgram",
    "TakeCheckpoint",
    "TakeSavepoint",
]


class SubmitProgram(Request, frozen=True):
    """Client to job manager: run this program. ``path`` is the client's ``sys.path``.

    ``key`` is unique to the submission. A client whose job manager has died sends it again to the next one, which
    may have the job already. For the same reason other requests have ``again``.
    """

    large: ClassVar[bool] = True
    name: str
    program: bytes
    path: list[str]
    key: str = ""


class CancelJob(Request, frozen=True):
    """Client to job manager: end a job without finishing it."""

    job: str
    again: bool = False


class StopJob(Request, frozen=True):
    """Client to job manager: end a job's sources, and let it finish what was read."""

    job: str
    again: bool = False


class TakeSavepoint(Request, frozen=True):
    """Client to job manager: take a savepoint of a job, and perhaps end the job with it.

    ``place`` is a path or URL, or empty for where the job's checkpoints are. With ``stop`` the answer comes when
    the job has ended.
    """

    job: str
    place: str
    stop: bool
    again: bool = False


class SavepointTaken(Answer, frozen=True):
    """Job manager to client: a savepoint is complete; ``location`` is its path or URL."""

    location: str


class TakeCheckpoint(Request, frozen=True):
    """Client to job manager: take a checkpoint of a job now."""

    job: str


class CheckpointTaken(Answer, frozen=True):
    """Job manager to client: a checkpoint that was asked for is complete."""

    checkpoint: int


class RescaleJob(Request, frozen=True):
    """Client to job manager: change the parallelism of a job that runs.

    ``parallelism`` is that of the steps for which the program chose none; 0: they keep theirs. ``steps`` is that
    of single ones, by name, uid or id of a vertex. With ``wait`` the answer comes when the job runs again, else as
    soon as nothing is in the way.
    """

    job: str
    parallelism: int
    steps: dict[str, int]
    wait: bool = True


class JobRescaled(Answer, frozen=True):
    """Job manager to client: the answer to :class:`RescaleJob`."""

    rescale: RescaleInfo


class AskCheckpoints(Request, frozen=True):
    """Client to job manager: request the checkpoints and savepoints of a job."""

    job: str


class Checkpoints(Answer, frozen=True):
    """Job manager to client: the last checkpoints and savepoints of a job, oldest first.

    ``directory`` is the path or URL of the directory that the job's checkpoints are in; empty: they are temporary.
    """

    large: ClassVar[bool] = True
    checkpoints: list[CheckpointInfo]
    directory: str = ""


class DescribeJob(Request, frozen=True):
    """Client to job manager: request the graph, the attempts and the options of a job."""

    job: str


class JobDescribed(Answer, frozen=True):
    """Job manager to client: the answer to :class:`DescribeJob`."""

    large: ClassVar[bool] = True
    description: JobDescription


class SampleJob(Request, frozen=True):
    """Client to job manager: take samples of the stacks of a job's processes for some seconds."""

    job: str
    seconds: float
    rate: float


class JobSampled(Answer, frozen=True):
    """Job manager to client: the answer to :class:`SampleJob`. ``problems`` are of workers that gave none."""

    large: ClassVar[bool] = True
    processes: list[StackSamples]
    problems: list[str]


class AskState(Request, frozen=True):
    """Client to job manager: read what a key has in a state of a job that runs, within so many seconds."""

    job: str
    uid: str
    state: str
    key: str
    namespace: str
    within_s: float


class StateFound(Answer, frozen=True):
    """Job manager to client: the answer to :class:`AskState`."""

    large: ClassVar[bool] = True
    found: FoundState


class AskStatus(Request, frozen=True):
    """Client to job manager: request the state of the cluster."""

    figures: bool = False


class Status(Answer, frozen=True):
    """Job manager to client: state of the cluster.

    ``epoch`` goes up with each job manager. ``figures``, where they were asked for: by job, its metrics,
    of those that have not ended.
    ``job_store`` is where jobs are written down, ``recovered`` are those that went on when this job manager was
    started, and ``problems`` tells what could not be read then. ``standbys`` are ready to lead, of as many as
    ``max_standbys``.
    """

    large: ClassVar[bool] = True
    pid: int
    epoch: int
    started_ms: int
    slots: int
    free_slots: int
    max_workers: int
    transport: str
    jobs: list[JobInfo]
    workers: list[WorkerInfo]
    figures: dict[str, JobMetrics] = msgspec.field(default_factory=dict)
    job_store: str = ""
    recovered: list[str] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    standbys: list[StandbyInfo] = msgspec.field(default_factory=list)
    max_standbys: int = 0


class ShutDown(Request, frozen=True):
    """Client to job manager: cancel all jobs, stop the workers, and exit.

    With ``keep`` the jobs stay in the job store instead, for the next job manager to go on with.
    """

    keep: bool = False


class Done(Answer, frozen=True):
    """Job manager to client: a request was carried out.

    Attributes:
        job: the job that it was about.
        problems: a sentence for each thing that did not end in order.
    """

    job: str = ""
    problems: tuple[str, ...] = ()


class Refused(Answer, frozen=True):
    """Job manager to client: a request was not carried out, and why.

    ``kind`` is the name of the error that the client raises, if that is another one than SluicewayError.
    """

    reason: str
    kind: str = ""

    @classmethod
    def by(cls, request: int, error: BaseException, reason: str = "") -> Refused:
        """Return the refusal for an error; ``reason`` replaces its message."""
        return cls(request, reason or str(error), kind_of(error))

    def error(self) -> SluicewayError:
        """Return the error for the client to raise."""
        return error_of(self.kind, self.reason)
