"""Types of the answers of the REST API: Flink's names and shapes, with additions of ours."""

from __future__ import annotations

from typing import Any

import msgspec

from sluiceway.metrics import SplitTimes
from sluiceway.monitoring.micro_batches import MicroBatchInfo
from sluiceway.monitoring.processes import ProcessFigures
from sluiceway.monitoring.stack_samples import FlameNode

__all__ = [
    "AggregatedMetric",
    "ApplicationDetails",
    "ApplicationException",
    "ApplicationExceptionHistory",
    "ApplicationExceptions",
    "ApplicationInfo",
    "Applications",
    "Backpressure",
    "BackpressureOfSubtask",
    "CheckpointConfig",
    "CheckpointCounts",
    "CheckpointDetails",
    "CheckpointSummary",
    "CheckpointVertex",
    "Checkpoints",
    "ConfigEntry",
    "DiagnosisAnswer",
    "ExceptionEntry",
    "ExceptionHistory",
    "Exceptions",
    "FlameGraph",
    "Jar",
    "JarEntry",
    "JarRun",
    "JarUploaded",
    "Jars",
    "JobDetails",
    "JobIdStatus",
    "JobIds",
    "JobOverview",
    "JobPlan",
    "JobStatusAnswer",
    "JobsOverview",
    "LatestCheckpoints",
    "LatestRescales",
    "LogInfo",
    "LogList",
    "Metric",
    "MicroBatches",
    "OperationStatus",
    "Overview",
    "ParallelismBounds",
    "PlanInput",
    "PlanNode",
    "Rescale",
    "RescaleConfig",
    "RescaleCounts",
    "RescaleState",
    "RescaledVertex",
    "RescalesOverview",
    "RescalesSummary",
    "SubtaskAnswer",
    "SubtaskOfCheckpoint",
    "SubtaskTimes",
    "TaskCounts",
    "TaskManager",
    "TaskManagers",
    "ThreadDumpAnswer",
    "ThreadInfo",
    "Triggered",
    "VertexCheckpoint",
    "VertexDetails",
    "VertexInJob",
    "VertexRequirements",
    "VertexTimes",
    "WatermarkMetric",
    "WebConfig",
]


class _Kebab(msgspec.Struct, rename="kebab"):
    """Base of answers whose fields have hyphens."""


class WebConfig(_Kebab):
    """Answer to ``GET /config``.

    ``replay`` names the program with which dead letters are replayed: ``program``, that of the job; ``upload``, an
    uploaded one; empty: the server replays none.
    """

    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str
    flink_revision: str
    features: dict[str, bool]
    replay: str


class Overview(_Kebab):
    """Answer to ``GET /overview``."""

    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str
    taskmanagers_blocked: int = 0
    slots_free_and_blocked: int = 0


class TaskCounts(msgspec.Struct):
    """Number of subtasks by state."""

    created: int = 0
    scheduled: int = 0
    deploying: int = 0
    initializing: int = 0
    running: int = 0
    finished: int = 0
    canceling: int = 0
    canceled: int = 0
    failed: int = 0
    reconciling: int = 0
    total: int = 0


class JobOverview(_Kebab):
    """One job in a list. ``job`` is the id that people use."""

    jid: str
    job: str
    name: str
    state: str
    start_time: int
    end_time: int
    duration: int
    last_modification: int
    tasks: TaskCounts
    restarts: int = 0
    records_in: int = 0
    records_out: int = 0


class JobsOverview(msgspec.Struct):
    """Answer to ``GET /jobs/overview``."""

    jobs: list[JobOverview]


class JobIdStatus(msgspec.Struct):
    """One job in ``GET /jobs``."""

    id: str
    status: str
    job: str


class JobIds(msgspec.Struct):
    """Answer to ``GET /jobs``."""

    jobs: list[JobIdStatus]


class ApplicationInfo(_Kebab):
    """One application: a job."""

    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    jobs: dict[str, int]


class Applications(msgspec.Struct):
    """Answer to ``GET /applications/overview``."""

    applications: list[ApplicationInfo]


class ApplicationDetails(_Kebab):
    """Answer to ``GET /applications/:application``."""

    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    jobs: list[JobOverview]


class ApplicationException(msgspec.Struct):
    """Failure of an application."""

    exceptionName: str  # noqa: N815
    stacktrace: str
    timestamp: int
    jobId: str  # noqa: N815


class ApplicationExceptionHistory(msgspec.Struct):
    """Failures of an application."""

    entries: list[ApplicationException]


class ApplicationExceptions(msgspec.Struct):
    """Answer to ``GET /applications/:application/exceptions``."""

    exception_history: ApplicationExceptionHistory = msgspec.field(name="exceptionHistory")


class PlanInput(msgspec.Struct):
    """Edge into a node of the plan."""

    num: int
    id: str
    ship_strategy: str
    exchange: str = "pipelined_bounded"


class PlanNode(msgspec.Struct):
    """Vertex in the plan."""

    id: str
    parallelism: int
    operator: str
    operator_strategy: str
    description: str
    optimizer_properties: dict[str, Any]
    inputs: list[PlanInput] = []


class JobPlan(msgspec.Struct):
    """Graph of a job."""

    jid: str
    name: str
    type: str
    nodes: list[PlanNode]


class VertexInJob(msgspec.Struct):
    """Vertex in ``GET /jobs/:job``. ``metrics`` has Flink's names with hyphens."""

    id: str
    name: str
    maxParallelism: int  # noqa: N815
    parallelism: int
    status: str
    start_time: int = msgspec.field(name="start-time")
    end_time: int = msgspec.field(name="end-time")
    duration: int
    tasks: dict[str, int]
    metrics: dict[str, Any]
    slotSharingGroupId: str = ""  # noqa: N815


class JobDetails(_Kebab):
    """Answer to ``GET /jobs/:job``. With the scheduler type ``Adaptive``, Flink's dashboard offers to rescale."""

    jid: str
    job: str
    name: str
    state: str
    start_time: int
    end_time: int
    duration: int
    now: int
    timestamps: dict[str, int]
    vertices: list[VertexInJob]
    status_counts: dict[str, int]
    plan: JobPlan
    is_stoppable: bool = msgspec.field(name="isStoppable", default=True)
    max_parallelism: int = msgspec.field(name="maxParallelism", default=-1)
    job_type: str = "STREAMING"
    scheduler_type: str = msgspec.field(name="schedulerType", default="Adaptive")


class JobStatusAnswer(msgspec.Struct):
    """Answer to ``GET /jobs/:job/status``."""

    status: str


class ConfigEntry(msgspec.Struct):
    """Name and value of an option."""

    key: str
    value: str
    origin: str = ""


class ExceptionEntry(msgspec.Struct):
    """One failure of a job."""

    exceptionName: str  # noqa: N815
    stacktrace: str
    timestamp: int
    taskName: str | None  # noqa: N815
    endpoint: str | None
    taskManagerId: str | None  # noqa: N815
    failureLabels: dict[str, str] = {}  # noqa: N815
    concurrentExceptions: list[dict[str, Any]] = []  # noqa: N815


class ExceptionHistory(msgspec.Struct):
    """Failures of a job, newest first."""

    entries: list[ExceptionEntry]
    truncated: bool


class Exceptions(_Kebab):
    """Answer to ``GET /jobs/:job/exceptions``."""

    root_exception: str | None
    timestamp: int | None
    all_exceptions: list[dict[str, Any]]
    truncated: bool
    exception_history: ExceptionHistory = msgspec.field(name="exceptionHistory")


class Metric(msgspec.Struct, omit_defaults=True):
    """Name of a metric, with its value as text if it was asked for."""

    id: str
    value: str | None = None


class WatermarkMetric(Metric, omit_defaults=True):
    """Watermark of a subtask. ``splits`` is an addition to Flink's."""

    splits: SplitTimes | None = None


class AggregatedMetric(msgspec.Struct):
    """Metric over subtasks. ``skew`` is 100 times the standard deviation divided by the mean."""

    id: str
    min: float
    max: float
    avg: float
    sum: float
    skew: float


class CheckpointCounts(_Kebab):
    """Numbers of checkpoints among the last ones that are kept."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class CheckpointSummary(msgspec.Struct):
    """Quantiles of the completed checkpoints, by measure."""

    end_to_end_duration: dict[str, float]
    state_size: dict[str, float]
    checkpointed_size: dict[str, float]
    processed_data: dict[str, float]
    persisted_data: dict[str, float]
    alignment_buffered: dict[str, float]


class CheckpointVertex(msgspec.Struct):
    """Part of a vertex in a checkpoint."""

    id: str
    status: str
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int


class CheckpointDetails(msgspec.Struct):
    """One checkpoint."""

    className: str  # noqa: N815
    id: int
    status: str
    is_savepoint: bool
    savepointFormat: str | None  # noqa: N815
    trigger_timestamp: int
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    checkpoint_type: str
    tasks: dict[str, CheckpointVertex]
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_message: str | None = None


class LatestCheckpoints(msgspec.Struct):
    """The newest checkpoint of each kind."""

    completed: CheckpointDetails | None
    savepoint: CheckpointDetails | None
    failed: CheckpointDetails | None
    restored: dict[str, Any] | None


class Checkpoints(msgspec.Struct):
    """Answer to ``GET /jobs/:job/checkpoints``."""

    counts: CheckpointCounts
    summary: CheckpointSummary
    latest: LatestCheckpoints
    history: list[CheckpointDetails]


class CheckpointConfig(msgspec.Struct):
    """Answer to ``GET /jobs/:job/checkpoints/config``."""

    mode: str
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: dict[str, bool]
    state_backend: str
    checkpoint_storage: str
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool
    state_changelog_enabled: bool = False
    changelog_periodic_materialization_interval: int = 0
    changelog_storage: str = ""


class SubtaskOfCheckpoint(msgspec.Struct):
    """Part of a subtask in a checkpoint."""

    index: int
    status: str
    ack_timestamp: int
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int
    checkpoint: dict[str, int]
    alignment: dict[str, int]
    start_delay: int
    unaligned_checkpoint: bool
    aborted: bool = False


class VertexCheckpoint(msgspec.Struct):
    """Answer to ``GET /jobs/:job/checkpoints/details/:id/subtasks/:vertex``."""

    id: int
    status: str
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    summary: dict[str, Any]
    subtasks: list[SubtaskOfCheckpoint]


class SubtaskAnswer(_Kebab):
    """One attempt of a subtask."""

    subtask: int
    status: str
    attempt: int
    endpoint: str
    start_time: int
    end_time: int
    duration: int
    metrics: dict[str, Any]
    taskmanager_id: str
    status_duration: dict[str, int]
    other_concurrent_attempts: list[Any] | None = None


class VertexDetails(msgspec.Struct):
    """Answer to ``GET /jobs/:job/vertices/:vertex``."""

    id: str
    name: str
    parallelism: int
    maxParallelism: int  # noqa: N815
    now: int
    subtasks: list[SubtaskAnswer]
    aggregated: dict[str, Any]


class SubtaskTimes(msgspec.Struct):
    """Times of the states of a subtask's attempt."""

    subtask: int
    endpoint: str
    duration: int
    timestamps: dict[str, int]


class VertexTimes(msgspec.Struct):
    """Answer to ``GET /jobs/:job/vertices/:vertex/subtasktimes``."""

    id: str
    name: str
    now: int
    subtasks: list[SubtaskTimes]


class BackpressureOfSubtask(msgspec.Struct):
    """Shares of the time of a subtask. ``waitingRatio`` is an addition to Flink's."""

    subtask: int
    backpressure_level: str = msgspec.field(name="backpressure-level")
    ratio: float
    idleRatio: float  # noqa: N815
    busyRatio: float  # noqa: N815
    waitingRatio: float  # noqa: N815
    attempt_number: int = msgspec.field(name="attempt-number", default=0)


class Backpressure(_Kebab):
    """Answer to ``GET /jobs/:job/vertices/:vertex/backpressure``."""

    status: str
    backpressure_level: str | None
    end_timestamp: int | None
    subtasks: list[BackpressureOfSubtask]


class TaskManager(msgspec.Struct):
    """One worker process. ``process`` has its figures, an addition to Flink's; heap is resident memory."""

    id: str
    path: str
    dataPort: int  # noqa: N815
    jmxPort: int  # noqa: N815
    timeSinceLastHeartbeat: int  # noqa: N815
    slotsNumber: int  # noqa: N815
    freeSlots: int  # noqa: N815
    totalResource: dict[str, Any]  # noqa: N815
    freeResource: dict[str, Any]  # noqa: N815
    hardware: dict[str, int]
    memoryConfiguration: dict[str, int]  # noqa: N815
    blocked: bool = False
    metrics: dict[str, Any] = {}
    allocatedSlots: list[Any] = []  # noqa: N815
    process: ProcessFigures | None = None


class TaskManagers(msgspec.Struct):
    """Answer to ``GET /taskmanagers``."""

    taskmanagers: list[TaskManager]


class LogInfo(msgspec.Struct):
    """One log file; ``mtime`` in ms since the epoch. ``process`` is an addition to Flink's."""

    name: str
    size: int
    mtime: int
    process: str


class LogList(msgspec.Struct):
    """Answer to ``GET .../logs``."""

    logs: list[LogInfo]


class ThreadInfo(msgspec.Struct):
    """Stack of one thread. ``task`` (the task whose step runs in it) and ``frames`` are additions to Flink's."""

    threadName: str  # noqa: N815
    stringifiedThreadInfo: str  # noqa: N815
    task: str = ""
    frames: list[str] = []


class ThreadDumpAnswer(msgspec.Struct):
    """Answer to ``GET .../thread-dump``."""

    threadInfos: list[ThreadInfo]  # noqa: N815
    process: str = ""
    pid: int = 0
    at: int = 0


class ParallelismBounds(msgspec.Struct, rename="camel"):
    """Bounds of the parallelism of a vertex. The job has the upper one."""

    lower_bound: int
    upper_bound: int


class VertexRequirements(msgspec.Struct):
    """Requirements of a vertex, in ``/jobs/:job/resource-requirements``."""

    parallelism: ParallelismBounds


class RescaleCounts(msgspec.Struct, rename="camel"):
    """Numbers of rescales, over the history."""

    ignored: int
    in_progress: int
    completed: int
    failed: int


class RescaledVertex(msgspec.Struct, rename="camel"):
    """Parallelism of a vertex in a rescale: ``desired`` was asked for, ``post`` is None until its end."""

    job_vertex_id: str
    job_vertex_name: str
    slot_sharing_group_id: str
    slot_sharing_group_name: str
    desired_parallelism: int
    sufficient_parallelism: int
    pre_rescale_parallelism: int | None
    post_rescale_parallelism: int | None


class RescaleState(msgspec.Struct, rename="camel"):
    """Part of the time of a rescale: ``Executing``, then ``Restarting`` while tasks did not run."""

    state: str
    enter_timestamp_in_millis: int
    leave_timestamp_in_millis: int | None
    duration_in_millis: int | None
    stringified_exception: str | None


class Rescale(msgspec.Struct, rename="camel"):
    """Rescale in ``/jobs/:job/rescales``.

    Attributes:
        rescale_uuid: id of the rescale.
        resource_requirements_uuid: the same; each request has one rescale.
        rescale_attempt_id: always 1.
        vertices: by id.
        slots: empty.
        scheduler_states: parts of its time; None except in its details.
        start_timestamp_in_millis: time of the request.
        end_timestamp_in_millis: time of its end; None while it is under way.
        terminal_state: ``COMPLETED`` or ``FAILED``; None while it is under way.
        trigger_cause: always ``UPDATE_REQUIREMENT``.
        terminated_reason: ``SUCCEEDED`` or ``EXCEPTION_OCCURRED``; None while it is under way.
        reason: reason of the failure.
        checkpoint: number of the checkpoint that it has continued from; 0: none.
        stopped_in_millis: time for which some subtasks did not run.
    """

    rescale_uuid: str
    resource_requirements_uuid: str
    rescale_attempt_id: int
    vertices: dict[str, RescaledVertex]
    slots: dict[str, Any]
    scheduler_states: list[RescaleState] | None
    start_timestamp_in_millis: int
    end_timestamp_in_millis: int | None
    terminal_state: str | None
    trigger_cause: str
    terminated_reason: str | None
    reason: str
    checkpoint: int
    stopped_in_millis: int


class LatestRescales(msgspec.Struct):
    """Latest rescale of each kind; ``ignored`` is always None."""

    completed: Rescale | None
    failed: Rescale | None
    ignored: None = None


class RescalesOverview(msgspec.Struct, rename="camel"):
    """Answer to ``GET /jobs/:job/rescales/overview``."""

    rescales_counts: RescaleCounts
    latest: LatestRescales


class RescalesSummary(msgspec.Struct, rename="camel"):
    """Answer to ``GET /jobs/:job/rescales/summary``: quantiles of durations."""

    rescales_counts: RescaleCounts
    rescales_duration_stats_in_millis: dict[str, float]
    completed_rescales_duration_stats_in_millis: dict[str, float]
    ignored_rescales_duration_stats_in_millis: dict[str, float]
    failed_rescales_duration_stats_in_millis: dict[str, float]


class RescaleConfig(msgspec.Struct, rename="camel"):
    """Answer to ``GET /jobs/:job/rescales/config``. None: a job has no such limit."""

    rescale_history_max: int
    scheduler_execution_mode: None = None
    submission_resource_wait_timeout_in_millis: None = None
    submission_resource_stabilization_timeout_in_millis: None = None
    slot_idle_timeout_in_millis: None = None
    executing_cooldown_timeout_in_millis: None = None
    executing_resource_stabilization_timeout_in_millis: None = None
    maximum_delay_for_triggering_rescale_in_millis: None = None
    rescale_on_failed_checkpoint_count: None = None


class Triggered(_Kebab):
    """Answer to a request that starts an operation."""

    request_id: str


class OperationStatus(msgspec.Struct):
    """State of an operation; ``operation`` is None until it is complete."""

    status: dict[str, str]
    operation: dict[str, Any] | None


class DiagnosisAnswer(msgspec.Struct):
    """Answer to ``GET /jobs/:job/diagnosis``; see ``sluiceway.monitoring.diagnosis``."""

    healthy: bool
    summary: str
    slow: list[Any]
    late: list[Any]
    lost: list[Any]


class FlameGraph(msgspec.Struct, omit_defaults=True):
    """Answer to ``GET .../flamegraph``: functions with numbers of samples. Empty: there are no samples yet.

    ``moments`` is the number of times at which stacks were read.
    """

    endTimestamp: int = 0  # noqa: N815
    data: FlameNode | None = None
    moments: int = 0


class JarEntry(msgspec.Struct):
    """Default entry class of a program: the name of its pipeline."""

    name: str
    description: str | None = None


class Jar(msgspec.Struct):
    """Uploaded program: a ``.py`` or a wheel."""

    id: str
    name: str
    uploaded: int
    entry: list[JarEntry]


class Jars(msgspec.Struct):
    """Answer to ``GET /jars``."""

    address: str
    files: list[Jar]


class JarUploaded(msgspec.Struct):
    """Answer to ``POST /jars/upload``. ``filename`` is the id of the program."""

    filename: str
    status: str


class JarRun(msgspec.Struct):
    """Answer to ``POST /jars/:file/run``."""

    jobid: str
    job: str


class MicroBatches(msgspec.Struct):
    """Answer to ``GET /jobs/:job/micro-batches``, oldest first. ``url`` is that of the engine's own pages."""

    micro_batches: list[MicroBatchInfo]
    url: str
