"""What job manager and workers say to one another. Small, typed, versioned; never pickle.

What is pickled (programs, splits, exceptions) travels as ``bytes`` in a field of its own, and is opened only by
who has seen the peer prove the cluster's secret: :mod:`sluiceway.runtime.cluster.connection` takes no message
of any other kind before that.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.runtime.cluster.job_infos import (
    CheckpointInfo,
    FailureInfo,
    JobInfo,
    StandbyInfo,
    SubtaskInfo,
    WorkerInfo,
)

__all__ = [
    "PROTOCOL_VERSION",
    "AcknowledgeCheckpoint",
    "AnnounceWatermark",
    "AskCheckpoints",
    "AskState",
    "AskStatus",
    "AssignSplits",
    "CancelJob",
    "CancelTask",
    "CheckpointAborted",
    "CheckpointCompleted",
    "CheckpointInfo",
    "Checkpoints",
    "DeclineCheckpoint",
    "DeployTasks",
    "Done",
    "Drained",
    "FailureInfo",
    "FoundState",
    "Heartbeat",
    "Hello",
    "HoldResults",
    "JobEnded",
    "JobInfo",
    "Leads",
    "Logged",
    "MalformedMessageError",
    "Message",
    "NoMoreSplits",
    "Proof",
    "ReadState",
    "Refused",
    "Register",
    "RegisterStandby",
    "ReportMetrics",
    "ReportTask",
    "ReportWatermark",
    "RequestSplit",
    "Results",
    "SavepointTaken",
    "ShutDown",
    "StandbyInfo",
    "StateFound",
    "StateRead",
    "StateValue",
    "Status",
    "StopJob",
    "StopSource",
    "StopStandby",
    "StopWorker",
    "SubmitJob",
    "SubmitProgram",
    "SubtaskInfo",
    "TakeSavepoint",
    "TriggerCheckpoint",
    "WorkerInfo",
    "decode",
    "encode",
]

PROTOCOL_VERSION: Final = 3
"""Raised when a message changes its meaning. Peers of different versions part at once."""


class MalformedMessageError(SluicewayError):
    """Bytes that are no message of this protocol."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class _OfJob(_Message, frozen=True):
    """Of a job, as the job master of an epoch knows it."""

    job: str
    epoch: int


class _OfTask(_OfJob, frozen=True):
    """Of one attempt to run a task."""

    attempt: str


class Hello(_Message, frozen=True):
    """First of all, from both sides: who speaks, and what the other side has to sign."""

    role: str
    nonce: bytes
    version: int = PROTOCOL_VERSION


class Proof(_Message, frozen=True):
    """Second, from both sides: the peer's nonce, signed with the cluster's secret."""

    signature: bytes


class Register(_Message, frozen=True):
    """A worker has come.

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


class Heartbeat(_Message, frozen=True):
    """Both ways: still here. ``count`` goes up by one each time."""

    count: int


class RegisterStandby(_Message, frozen=True):
    """A job manager has come that stands by; ``pid`` is its process id."""

    pid: int


class Leads(_Message, frozen=True):
    """Job manager to standby: it leads, and its loop turns."""

    epoch: int


class StopStandby(_Message, frozen=True):
    """Job manager to standby: end, the cluster is stopped."""


class SubmitJob(_OfJob, frozen=True):
    """Job manager to worker: a program. ``epoch`` is that of the job master that leads the job."""

    program: bytes


class DeployTasks(_OfJob, frozen=True):
    """Job manager to worker: run these attempts. ``peers`` says where the workers they talk to can be reached."""

    attempts: list[str]
    deployments: bytes
    peers: dict[str, str]


class CancelTask(_OfTask, frozen=True):
    """Job manager to worker."""


class AssignSplits(_OfTask, frozen=True):
    """Job manager to worker: splits for a reader."""

    splits: bytes


class NoMoreSplits(_OfTask, frozen=True):
    """Job manager to worker: a reader has all the splits that it will get."""


class AnnounceWatermark(_OfTask, frozen=True):
    """Job manager to worker: where the slowest of a reader's alignment group is, in ms; None: nowhere."""

    mark: int | None


class StopSource(_OfTask, frozen=True):
    """Job manager to worker: a reader comes to its end, as if its source had ended there."""


class TriggerCheckpoint(_OfTask, frozen=True):
    """Job manager to worker: begin a checkpoint, or a savepoint, in a task."""

    checkpoint: int
    timestamp_ms: int
    savepoint: str = ""
    stops: bool = False
    aligned_ms: int = -1


class CheckpointCompleted(_OfJob, frozen=True):
    """Job manager to worker: a checkpoint is complete."""

    attempts: list[str]
    checkpoint: int


class CheckpointAborted(_OfJob, frozen=True):
    """Job manager to worker: a checkpoint was aborted."""

    attempts: list[str]
    checkpoint: int


class AcknowledgeCheckpoint(_OfTask, frozen=True):
    """Worker to job manager: a task has done its part. ``snapshot`` is pickled."""

    checkpoint: int
    snapshot: bytes


class DeclineCheckpoint(_OfTask, frozen=True):
    """Worker to job manager: a task does not take part. ``cause`` is a pickled exception."""

    checkpoint: int
    cause: bytes


class Drained(_OfTask, frozen=True):
    """Worker to job manager: a task has come to the end of its input, and waits for a checkpoint."""


class ReadState(_OfTask, frozen=True):
    """Job manager to worker: what a key has in a state, now. ``namespace`` is JSON, or empty for all of them.

    ``keys`` are what the key that was given as ``text`` may stand for, in the order of preference.
    """

    number: int
    uid: str
    state: str
    text: str
    keys: list[bytes]
    namespace: str


class StateValue(msgspec.Struct, frozen=True):
    """What a key has in a namespace; each part as a snapshot has it."""

    namespace: bytes
    key: bytes
    values: list[bytes]


class FoundState(msgspec.Struct, frozen=True):
    """What a key has in a state, and what a :class:`~.state.StateMeta` says of that."""

    name: str
    kind: str
    serializer: str
    version: int
    type: str
    expires: bool
    declared: str
    values: list[StateValue]


class StateRead(_OfTask, frozen=True):
    """Worker to job manager: the answer to :class:`ReadState`; ``found`` is None where there is a ``problem``."""

    number: int
    found: FoundState | None
    problem: str


class HoldResults(_OfJob, frozen=True):
    """Job manager to worker: the program that runs the job has enough records for now, or wants more again."""

    number: int
    hold: bool


class JobEnded(_OfJob, frozen=True):
    """Job manager to worker: forget the job."""


class StopWorker(_Message, frozen=True):
    """Job manager to worker: end. ``epoch`` is that of the job manager."""

    epoch: int = 0


class ReportTask(_OfTask, frozen=True):
    """Worker to job manager: a task has changed its state. ``cause`` is a pickled exception, or empty."""

    state: str
    cause: bytes = b""


class RequestSplit(_OfJob, frozen=True):
    """Worker to job manager: a reader wants a split."""

    vertex: int
    subtask: int


class ReportWatermark(_OfTask, frozen=True):
    """Worker to job manager: how far a reader of an alignment group is, in ms; None: it does not count."""

    group: str
    mark: int | None


class ReportMetrics(_OfJob, frozen=True):
    """Worker to job manager: figures of a job's tasks on that worker, pickled."""

    figures: bytes


class Results(_OfJob, frozen=True):
    """Worker to job manager: pickled records for an object of the program that runs the job."""

    number: int
    records: bytes


class Logged(_Message, frozen=True):
    """Worker to job manager: lines of its log and of what it has printed, each a JSON object."""

    lines: bytes


class SubmitProgram(_Message, frozen=True):
    """Client to job manager: run this. ``path`` is the client's ``sys.path``.

    ``key`` is unique to the submission. A client whose job manager has died sends it again to the next one, which
    may have the job already. For the same reason other requests have ``again``.
    """

    request: int
    name: str
    program: bytes
    path: list[str]
    key: str = ""


class CancelJob(_Message, frozen=True):
    """Client to job manager: end a job without finishing it."""

    request: int
    job: str
    again: bool = False


class StopJob(_Message, frozen=True):
    """Client to job manager: end a job's sources, and let it finish what was read."""

    request: int
    job: str
    again: bool = False


class TakeSavepoint(_Message, frozen=True):
    """Client to job manager: take a savepoint of a job, and perhaps end the job with it.

    ``place`` is a path or URL, or empty for where the job's checkpoints are. With ``stop`` the answer comes when
    the job has ended.
    """

    request: int
    job: str
    place: str
    stop: bool
    again: bool = False


class SavepointTaken(_Message, frozen=True):
    """Job manager to client: a savepoint is complete; ``location`` is its path or URL."""

    request: int
    location: str


class AskCheckpoints(_Message, frozen=True):
    """Client to job manager: which checkpoints and savepoints has a job taken?"""

    request: int
    job: str


class AskState(_Message, frozen=True):
    """Client to job manager: read what a key has in a state of a job that runs, within so many seconds."""

    request: int
    job: str
    uid: str
    state: str
    key: str
    namespace: str
    within_s: float


class StateFound(_Message, frozen=True):
    """Job manager to client: the answer to :class:`AskState`."""

    request: int
    found: FoundState


class AskStatus(_Message, frozen=True):
    """Client to job manager: what is going on?"""

    request: int
    figures: bool = False


class ShutDown(_Message, frozen=True):
    """Client to job manager: cancel all jobs, end the workers, end.

    With ``keep`` the jobs stay in the job store instead, for the next job manager to go on with.
    """

    request: int
    keep: bool = False


class Done(_Message, frozen=True):
    """Job manager to client: a request was carried out; ``job`` is the one that it was about."""

    request: int
    job: str = ""


class Refused(_Message, frozen=True):
    """Job manager to client: a request was not carried out, and why."""

    request: int
    reason: str


class Checkpoints(_Message, frozen=True):
    """Job manager to client: the last checkpoints and savepoints of a job, oldest first.

    ``directory`` is the path or URL of the directory that the job's checkpoints are in; empty: they are in memory.
    """

    request: int
    checkpoints: list[CheckpointInfo]
    directory: str = ""


class Status(_Message, frozen=True):
    """Job manager to client: how things are.

    ``epoch`` goes up with each job manager. ``figures``, where they were asked for: by job, pickled metrics.
    ``job_store`` is where jobs are written down, ``recovered`` are those that went on when this job manager was
    started, and ``problems`` tells what could not be read then. ``standbys`` are ready to lead, of as many as
    ``max_standbys``.
    """

    request: int
    pid: int
    epoch: int
    started_ms: int
    slots: int
    free_slots: int
    max_workers: int
    transport: str
    jobs: list[JobInfo]
    workers: list[WorkerInfo]
    figures: bytes = b""
    job_store: str = ""
    recovered: list[str] = []
    problems: list[str] = []
    standbys: list[StandbyInfo] = []
    max_standbys: int = 0


Message: TypeAlias = (
    Hello
    | Proof
    | Register
    | Heartbeat
    | RegisterStandby
    | Leads
    | StopStandby
    | SubmitJob
    | DeployTasks
    | CancelTask
    | AssignSplits
    | NoMoreSplits
    | AnnounceWatermark
    | ReportWatermark
    | StopSource
    | TriggerCheckpoint
    | CheckpointCompleted
    | CheckpointAborted
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | Drained
    | ReadState
    | StateRead
    | HoldResults
    | JobEnded
    | StopWorker
    | ReportTask
    | RequestSplit
    | ReportMetrics
    | Results
    | Logged
    | SubmitProgram
    | CancelJob
    | StopJob
    | TakeSavepoint
    | SavepointTaken
    | AskCheckpoints
    | Checkpoints
    | AskState
    | StateFound
    | AskStatus
    | ShutDown
    | Done
    | Refused
    | Status
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)
_HANDSHAKE: Final = msgspec.msgpack.Decoder(Hello | Proof)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode(data: bytes | bytearray | memoryview, *, handshake: bool = False) -> Message:
    """Return the message.

    Args:
        data: its bytes.
        handshake: take the two messages of the handshake only, as long as the peer has proved nothing.

    Raises:
        MalformedMessageError: anything else, whatever the decoder raises: invalid UTF-8 and deep nesting are no
            errors of msgspec's own.
    """
    try:
        message: Message = (_HANDSHAKE if handshake else _DECODER).decode(data)
    except Exception as error:
        raise MalformedMessageError(f"{type(error).__name__}: {error}") from error
    return message
