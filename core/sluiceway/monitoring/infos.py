"""Facts about clusters, jobs, tasks and checkpoints, as the job manager reports them to clients."""

from __future__ import annotations

from typing import Final

import msgspec

from sluiceway.metrics import CheckpointInfo, FailureInfo, JobMetrics, SubtaskInfo
from sluiceway.monitoring.micro_batches import MicroBatchInfo

__all__ = [
    "CheckpointInfo",
    "ClusterInfo",
    "EdgeInfo",
    "ExecutionInfo",
    "FailureInfo",
    "JobDescription",
    "JobInfo",
    "MicroBatchInfo",
    "OptionInfo",
    "RescaleInfo",
    "StandbyInfo",
    "StepInfo",
    "SubtaskInfo",
    "VertexInfo",
    "WorkerInfo",
]


class JobInfo(msgspec.Struct, frozen=True):
    """One job of a cluster. Times are in ms since the epoch; 0: not yet.

    ``tasks`` is the number of its subtasks by their state.
    """

    job: str
    name: str
    status: str
    submitted_ms: int
    ended_ms: int
    needs_slots: int
    records_in: int
    records_out: int
    failure: str
    restarts: int
    failures: list[FailureInfo]
    tasks: dict[str, int] = {}

    @property
    def running(self) -> bool:
        """Return whether the job has begun and is to go on, also if some subtasks wait for a restart."""
        return self.status in ("running", "restarting")


class StepInfo(msgspec.Struct, frozen=True):
    """One step of a chain. ``kind`` is its type, such as ``map`` or ``source``; ``description`` is the user's."""

    name: str
    uid: str
    kind: str
    stateful: bool
    description: str | None = None


class VertexInfo(msgspec.Struct, frozen=True):
    """One job vertex: a chain of steps that run in one task per subtask."""

    id: int
    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    steps: list[StepInfo]
    slot_sharing_group: str = "default"

    @property
    def is_source(self) -> bool:
        """True if the chain begins with a source."""
        return self.steps[0].kind == "source"


class EdgeInfo(msgspec.Struct, frozen=True):
    """One exchange between two vertices.

    Attributes:
        source: id of the producing vertex.
        target: id of the consuming vertex.
        partitioner: its name, such as ``hash``.
        description: the partitioner with its key, for people.
        input_index: number of the input of the target, from 0.
        feedback: True if it closes a loop.
    """

    source: int
    target: int
    partitioner: str
    description: str
    input_index: int
    feedback: bool


class ExecutionInfo(msgspec.Struct, frozen=True):
    """One attempt of one subtask. ``timestamps`` has, by state, when it was entered (ms since the epoch)."""

    vertex: int
    subtask: int
    attempt: int
    state: str
    timestamps: dict[str, int]


class OptionInfo(msgspec.Struct, frozen=True):
    """One option of a job, as text. Credentials are replaced by ``***``."""

    name: str
    value: str
    is_default: bool


RESCALES_KEPT: Final = 16
"""Number of rescales in the history of a job."""


class RescaleInfo(msgspec.Struct, frozen=True):
    """One change of the parallelism of a running job.

    Attributes:
        requested_ms: when it was asked for, ms since the epoch.
        ended_ms: when all subtasks ran again, or when it was given up; 0: it is under way.
        status: ``in_progress``, ``completed`` or ``failed``.
        reason: why it was given up; then the job has the parallelism that it had before.
        before: parallelism by the uid of a vertex.
        after: parallelism that was asked for, likewise.
        checkpoint: number of the checkpoint that the job went on from; 0: none was taken.
        stopped_ms: for how long some subtasks did not run, ms.
    """

    requested_ms: int
    ended_ms: int
    status: str
    reason: str
    before: dict[str, int]
    after: dict[str, int]
    checkpoint: int = 0
    stopped_ms: int = 0


class JobDescription(msgspec.Struct, frozen=True):
    """Parts of a job that figures do not have.

    Attributes:
        vertices: in topological order.
        edges: the exchanges between them.
        executions: the current attempt of each subtask, with the last few before it, oldest first.
        options: of the run.
        checkpoint_interval_ms: time between two checkpoints; 0: none are taken.
        metrics: the last ones of a job that has ended; None while it runs.
        rescales: the last changes of its parallelism, oldest first.
        micro_batches: the last ones, oldest first; empty on engines without any.
        engine_url: address of the engine's own pages about the job; empty: it has none.
    """

    vertices: list[VertexInfo] = []
    edges: list[EdgeInfo] = []
    executions: list[ExecutionInfo] = []
    options: list[OptionInfo] = []
    checkpoint_interval_ms: int = 0
    metrics: JobMetrics | None = None
    rescales: list[RescaleInfo] = []
    micro_batches: list[MicroBatchInfo] = []
    engine_url: str = ""


class WorkerInfo(msgspec.Struct, frozen=True):
    """One worker process. ``silent_s`` is the time since its last heartbeat."""

    name: str
    pid: int
    slots: int
    silent_s: float
    free_slots: int = 0


class StandbyInfo(msgspec.Struct, frozen=True):
    """One job manager that stands by."""

    pid: int
    silent_s: float


class ClusterInfo(msgspec.Struct, frozen=True):
    """One cluster, or one job that runs by itself, at one moment.

    Attributes:
        pid: process id of the job manager.
        epoch: number of the job manager, which increases with each one.
        started_ms: when it was started, ms since the epoch.
        slots: number of task slots of the workers that are there.
        free_slots: slots without a task.
        max_workers: most workers that the cluster starts; 0: the job runs in the process of its program.
        transport: name of the transport between workers; empty if there are none.
        jobs: those that run, and the last ones that have ended.
        workers: those that are there.
        figures: by job, the metrics of those that have not ended; empty if they were not asked for.
        job_store: directory of the job store; empty: there is none.
        problems: errors of the recovery of jobs and of standbys.
        standbys: job managers that stand by.
    """

    pid: int
    epoch: int
    started_ms: int
    slots: int
    free_slots: int
    max_workers: int
    transport: str
    jobs: list[JobInfo]
    workers: list[WorkerInfo]
    figures: dict[str, JobMetrics] = {}
    job_store: str = ""
    problems: list[str] = []
    standbys: list[StandbyInfo] = []
