"""Local engine: runs a job in one thread of this process, or starts it with worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import SystemRandom
from threading import Lock
from typing import TypeVar

from msgspec.structs import replace

from sluiceway.config.settings import Settings
from sluiceway.engine import Engine, Job, JobFailure, JobResult, JobStatus, Services
from sluiceway.engine.capabilities import (
    COMMITS_ELSEWHERE,
    MANY_COMMITS,
    ONE_PROCESS,
    Capabilities,
    Feature,
    Unsupported,
)
from sluiceway.errors import RescaleError, StateError, choose
from sluiceway.graph import ExecutionGraph, ExecutionState, JobGraph, build_job_graph, slots_required
from sluiceway.graph.check.iterations import check_checkpoints, check_iterations
from sluiceway.metrics import CheckpointFigures, JobMetrics, MetricsReporter
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample, check_key_sampling
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.network.partitioners import BUILT_IN
from sluiceway.operators import own_copy
from sluiceway.partitioner import Distribution
from sluiceway.runtime.jobmanager.checkpoint_places import check_place
from sluiceway.runtime.jobmanager.checkpoint_store import (
    CheckpointPlace,
    checkpoint_stores_of,
    directory_of,
)
from sluiceway.runtime.jobmanager.job_description import checkpoint_infos, describe_job
from sluiceway.runtime.jobmanager.job_host import JobHost
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.jobmanager.job_metrics import JobFigures, Reporting
from sluiceway.runtime.jobmanager.mastered_job import MasteredJob
from sluiceway.runtime.jobmanager.restore import classes_of, restore_from
from sluiceway.runtime.local.functions_in_use import own_functions
from sluiceway.runtime.local.temporary_directory import TemporaryDirectory
from sluiceway.runtime.logging.engine_log import job_logging
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import CLOSE_S, SEARCH_CLOSE_S, Background, HelperThread
from sluiceway.runtime.loop.lazy_event_loop import LazyEventLoop
from sluiceway.runtime.loop.poller import Poller, SelectorPoller
from sluiceway.runtime.loop.tasklet import Presence, Scheduled, TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.handlers import Handlers
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.tasks import DeployTasks
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import JobSnapshot, with_own_objects
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.runtime.task.task import Task
from sluiceway.runtime.task.task_figures import figures_of, plain_figures
from sluiceway.runtime.taskmanager.local_recovery import LocalCopyRegistration, with_local_copies
from sluiceway.runtime.taskmanager.snapshot_writer import (
    StorageWriter,
    TemporaryWriter,
)
from sluiceway.runtime.taskmanager.task_manager import TaskManager
from sluiceway.scheduler import SCHEDULERS, SlotPool, restart_strategy
from sluiceway.serializers.program_classes import using
from sluiceway.streamgraph import StreamGraph, StreamNode
from sluiceway.util.garbage_collector import seldom
from sluiceway.util.overriding import override

__all__ = ["LocalEngine", "LocalJob", "job_graph_of"]

T = TypeVar("T")


class LocalEngine(Engine):
    """Engine that runs a pipeline in the calling thread, where a debugger can step into everything."""

    def prepare(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        """Chain the graph and look up what it needs."""
        if settings.scheduler not in SCHEDULERS:
            raise choose("scheduling strategy", settings.scheduler, SCHEDULERS)
        # Made and dropped: a text that is no strategy is an error before anything runs.
        restart_strategy(settings.restart)
        job_graph = job_graph_of(graph, services)
        if settings.workers:
            from sluiceway.runtime.cluster.cluster_job import ClusterJob

            check_checkpoints(job_graph, settings)
            return ClusterJob(job_graph, settings, services)
        restored = restore_from(settings, job_graph, services)
        check_place(settings, services)
        return LocalJob(job_graph, settings, services, restored=restored)

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """Return the capabilities; a few options need workers, a few objects need one process."""
        hosted = Unsupported("it starts its own workers", "leave it out, or choose --engine spark")
        lacks = {Feature.HOSTED: hosted}
        if settings.checkpoint_interval_ms:
            lacks[Feature.REPLACING_SINKS] = MANY_COMMITS
        if settings.workers:
            lacks |= {Feature.PROCESS_OBJECTS: ONE_PROCESS, Feature.PROGRAM_SINKS: COMMITS_ELSEWHERE}
            return Capabilities("engine 'local' with workers", lacks)
        if settings.transport == "auto":  # the services report an unknown name, as they know all
            one = "records go by reference inside one process"
            lacks[Feature.TRANSPORTS] = Unsupported(one, "leave transport at 'auto', or run with --workers")
        return Capabilities(
            "engine 'local' in one process",
            lacks,
            {
                Feature.NETWORK_BUFFERS: "There is no network, so that this says nothing.",
                Feature.LIVENESS: "There are no workers that could hang, so that this says nothing.",
            },
        )


class _LocalHost(JobHost):
    """Host of a job in this process: it has as many slots as the job asks for, as they cost nothing here.

    Attributes:
        presence: tasklet that ends with the job.
    """

    def __init__(self, job: LocalJob, worker: TaskletLoop) -> None:
        super().__init__(job.services.clock, SlotPool())
        self.slots.offer("local", sum(slots_required(job.job_graph).values()))
        # Between restarts no task keeps the loop running.
        self.presence = Presence(lambda: job.status.ended)
        self._job = job
        self._worker = worker

    @override
    def send(self, worker: str, message: Message) -> None:
        self._job.to_tasks(message)

    @override
    def post(self, action: Callable[[], None], after_s: float) -> Scheduled:
        return self._worker.post(action, after_s)

    @override
    def search(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        self._job.search(work, done)

    @override
    def make_room(self, lacking: int) -> None:
        self.slots.extend("local", max(0, lacking - self.slots.available))

    @override
    def job_resized(self, graph: JobGraph) -> None:
        self._job.resized(graph)

    @override
    def job_ended(self) -> None:
        self._worker.wake(self.presence)


class LocalJob(MasteredJob):
    """Run of a job in this process.

    Args:
        graph: the job.
        settings: the options of the run.
        services: factories of the plugins.
        make_poller: creates the worker's poller; tests use one with virtual time.
        make_event_loop: creates the event loop of coroutines.
        make_background: creates the executor of blocking calls.
        restored: snapshot to restore; None: the job starts empty.

    Raises:
        StateError: what is to be restored holds state of a step that the graph does not have, or has come to its
            end, where the graph has records for it.
    """

    def __init__(
        self,
        graph: JobGraph,
        settings: Settings,
        services: Services,
        make_poller: Callable[[], Poller] = SelectorPoller,
        restored: JobSnapshot | None = None,
        make_event_loop: Callable[[], EventLoop] = LazyEventLoop,
        make_background: Callable[[TaskletLoop], Background] = lambda worker: HelperThread(worker.mail),
    ) -> None:
        super().__init__(settings, services)
        self._make_poller = make_poller
        self._event_loop = make_event_loop()
        self._make_background = make_background
        self._background: Background | None = None
        self._searches: Background | None = None
        check_checkpoints(graph, settings)
        if restored is not None:
            restored.check_ends(graph)
            if not settings.allow_dropped_state:
                restored.check_known(graph)
        self._graph = graph if restored is None else restored.fit(graph)
        self._restored = restored
        self._transport = services.transport("local" if settings.transport == "auto" else settings.transport)
        self._state_backend = services.state_backend(settings.state_backend)
        location = settings.checkpoints
        self._storage = None
        if location is not None:
            self._storage = with_local_copies(services.checkpoint_storage(location), settings)
        self._copies: LocalCopyRegistration | None = None
        self._temporary: TemporaryDirectory | None = None
        self._reporters: list[MetricsReporter] = services.metrics_reporters(settings.metrics)
        self._reporting: Reporting | None = None
        self._tasks: TaskManager | None = None
        self._figures = JobFigures()
        self._figures_lock = Lock()
        self._unused: dict[int, list[StreamNode]] | None = None
        self._cancelled = False
        self._over = False
        self._started_at = 0.0
        self._ended_at: float | None = None
        self._poller: Poller | None = None
        self._worker: TaskletLoop | None = None
        self._master: JobMaster | None = None
        self._checkpoint_path = ""

    # ---- the job's face -------------------------------------------------------------------------------------

    @override
    def run(self) -> JobResult:
        self._check_new()
        try:
            classes = classes_of(self._graph)
            with (
                job_logging(self._settings),
                seldom(),
                own_functions(self._graph) as self._graph,
                using(classes),
            ):
                try:
                    self.begin()
                    self.worker.run(lambda: self.status.ended)
                except BaseException:
                    self.abandon()
                    raise
                return self.end()
        finally:
            # A job that cannot begin has ended, too.
            self._over = True
            self._requests.close()

    @override
    def cancel(self) -> None:
        self._cancelled = True
        master, worker = self._master, self._worker
        if master is not None and worker is not None:
            worker.mail(master.cancel)

    @override
    def rescale(
        self,
        parallelism: int | None,
        steps: Mapping[str, int],
        done: Callable[[RescaleInfo | None, BaseException | None], None],
        accepted: Callable[[RescaleInfo], None] | None = None,
    ) -> None:
        if self._settings.restart == "none":
            raise RescaleError(
                "in one process a job can be rescaled only if it can be restarted, for which its functions are "
                "copied before it begins: give it a checkpoint interval or a restart strategy, or run it with "
                "workers"
            )
        super().rescale(parallelism, steps, done, accepted)

    @property
    @override
    def status(self) -> JobStatus:
        if self._master is not None:
            return self._master.status
        return JobStatus.FAILED if self._over else JobStatus.CREATED

    @override
    def failures(self) -> tuple[JobFailure, ...]:
        return () if self._master is None else self._master.failures

    @property
    def job_graph(self) -> JobGraph:
        """Job graph."""
        return self._graph

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Deployed tasks."""
        return () if self._tasks is None else self._tasks.tasks

    @property
    def worker(self) -> TaskletLoop:
        """Worker, once the job has started."""
        if self._worker is None:
            raise RuntimeError("the job has not begun: call run()")
        return self._worker

    @override
    def describe(self) -> JobDescription:
        master = self._master
        if master is None:
            return describe_job(self._graph, self._settings, None)
        return describe_job(self._graph, self._settings, master.executions, master.rescales)

    @override
    def checkpoints(self) -> list[CheckpointInfo]:
        if self._master is None:
            return []
        return checkpoint_infos(self._graph, self._master.checkpoints.coordinator.history.copy())

    @override
    def checkpoint_directory(self) -> str:
        return directory_of(self._settings.checkpoints, self._checkpoint_path)

    def sample_stacks(
        self, seconds: float, rate: float, done: Callable[[list[StackSamples], list[str]], None]
    ) -> None:
        """Take samples of the stacks of this process. From any thread."""
        from sluiceway.runtime.taskmanager.stack_sampler import check_sampling, sample_stacks

        def taken(samples: StackSamples | None, problem: str) -> None:
            done([] if samples is None else [samples], [problem] if problem else [])

        check_sampling(seconds, rate)
        tasks, worker = self._tasks, self._worker
        if tasks is None or worker is None or self.status.ended:
            done([], ["the job does not run"])
        else:
            sample_stacks(worker, tasks.task_of, seconds, rate, "", self.services.clock, taken)

    def sample_keys(
        self, vertices: list[int], seconds: float, done: Callable[[list[KeySample], list[str]], None]
    ) -> None:
        """Count the keys that tasks of this process receive. From any thread."""
        from sluiceway.runtime.taskmanager.key_sampler import sample_keys

        def taken(samples: list[KeySample] | None, problem: str) -> None:
            done(samples or [], [problem] if problem else [])

        check_key_sampling(seconds)
        tasks, worker, clock = self._tasks, self._worker, self.services.clock
        if tasks is None or worker is None or self.status.ended:
            done([], ["the job does not run"])
        else:
            worker.mail(lambda: sample_keys(worker, tasks.tasks, vertices, seconds, "", clock, taken))

    @override
    def metrics(self) -> JobMetrics:
        clock = self.services.clock
        ended_at = self._ended_at
        elapsed = 0.0 if self._master is None else (ended_at or clock.monotonic()) - self._started_at
        executions = None if self._master is None else self._master.executions
        restarts = 0 if self._master is None else self._master.restarts
        checkpoints = CheckpointFigures() if self._master is None else self._master.checkpoints.figures
        # Reporters and programs ask from different threads.
        with self._figures_lock:
            self._figures.take(
                plain_figures(figures_of(task, state=_state_of(task, executions))) for task in self.tasks
            )
            return self._figures.metrics(
                self._graph.job_name, self.status.value, elapsed, executions, restarts, checkpoints
            )

    # ---- its beginning and its end, for whoever runs the loop in another way --------------------------------

    def begin(self) -> None:
        """Create worker and job master, and start the job; :meth:`worker` runs it, :meth:`end` ends it."""
        self._check_new()
        clock = self.services.clock
        seed = self._settings.seed
        self._poller = self._make_poller()
        self._worker = TaskletLoop(clock, self._poller)
        # State that a failed attempt has left in a function object must not be in the next attempt.
        may_restart = self._settings.restart != "none"
        if may_restart:
            self._unused = {v.id: [own_copy(n, 1) for n in v.nodes] for v in self._graph.vertices}
        self._started_at = clock.monotonic()
        host = _LocalHost(self, self._worker)
        seed = SystemRandom().getrandbits(32) if seed is None else seed
        background = self._background = self._make_background(self._worker)
        self._copies = LocalCopyRegistration(self._storage, self._settings)
        writer: StorageWriter
        if self._storage is not None:
            writer, place = StorageWriter(self._storage), CheckpointPlace(self._storage)
        else:
            self._temporary = TemporaryDirectory()
            writer, place = TemporaryWriter(self._temporary), CheckpointPlace(self._temporary, temporary=True)
        self._tasks = TaskManager(
            self._worker,
            self._transport,
            self._state_backend,
            self.services,
            self._event_loop,
            self._to_master,
            writer,
            background,
            on_dropped=self._task_dropped,
        )
        stores = checkpoint_stores_of(place, self.services, self._graph, self._graph.job_name, seed, background)
        self._checkpoint_path = stores.checkpoints.path
        self._master = JobMaster(
            self._graph,
            self._settings,
            host,
            listener=self.services.listener,
            seed=seed,
            stores=stores,
            restored=self._restored,
        )
        interval_ms = self._settings.metrics_interval_ms
        self._reporting = Reporting(self._reporters, self._worker, clock, interval_ms, self.metrics)
        self._reporting.open(self._graph.job_name)
        self._master.events.listen(self._reporting)
        # Without it the loop would end while nothing is left but a mail to come, such as that of a helper thread.
        self._worker.add(host.presence)
        self._worker.soon(self._master.start)
        self._requests.begin(self._master, self._worker.mail)
        # cancel() may have come before there was a job master to mail to.
        if self._cancelled:
            self._worker.soon(self._master.cancel)

    def pause_sources(self, paused: bool) -> None:
        """Stop or resume reading: elements in flight are processed, and the job becomes quiet."""
        for task in self.tasks:
            if isinstance(task.input, SourceInput):
                task.input.paused = paused
                self.worker.wake(task)

    def snapshot(self) -> JobSnapshot:
        """Return the job's current state. Worker's thread, between steps, with no elements in flight.

        Raises:
            StateError: records are under way; pause the sources and let the worker run first.
        """
        busy = [t for t in self.tasks if t.under_way()]
        if busy:
            raise StateError(
                f"records are under way to or from {busy[0].deployment.vertex.name!r}: "
                "pause the sources and let the job come to rest before a snapshot"
            )
        return JobSnapshot(
            operators=tuple(s for t in self.tasks for s in t.snapshot()),
            enumerators=self._begun().sources.snapshot(),
        )

    def end(self) -> JobResult:
        """Close everything; raise what the job failed with, or return its result."""
        master = self._begun()
        self._close()
        if master.failure is not None:
            raise master.failure
        return JobResult(self._graph.job_name, master.status, self.metrics(), master.failures)

    def abandon(self) -> None:
        """End at once after an exception that no task may catch, such as KeyboardInterrupt."""
        if self._master is not None and self._tasks is not None:
            self._tasks.cancel_all()
            self._master.cancel()
            # Lets the cancelled tasks report their end, so that the job ends as cancelled.
            self.worker.run_ready()
        self._close()

    # ---- inside ---------------------------------------------------------------------------------------------

    def to_tasks(self, message: Message) -> None:
        """Send a message of the job master through the loop's mailbox, as it would be over a connection."""
        tasks = self._tasks_of_job()
        if isinstance(message, DeployTasks):
            own = Payload([self._own(deployment) for deployment in message.deployments.open()])
            message = replace(message, deployments=own)
        self.worker.soon(partial(_dispatch, tasks, message))

    def search(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Do blocking work of an enumerator in another thread than that of checkpoints."""
        if self._searches is None:
            self._searches = self._make_background(self.worker)
        self._searches.run(work, done)

    def _to_master(self, message: Message) -> None:
        """Send a message of a task through the loop's mailbox."""
        self.worker.soon(partial(_dispatch, self._begun(), message))

    def _own(self, deployment: TaskDeployment) -> TaskDeployment:
        """Return the deployment with copied objects: a later attempt must start with the same."""
        restored = tuple(map(with_own_objects, deployment.restored))
        if not deployment.attempt or self._unused is None:
            return replace(deployment, restored=restored)
        unused = (
            replace(n, parallelism=deployment.vertex.parallelism) for n in self._unused[deployment.vertex.id]
        )
        nodes = tuple(own_copy(node, 1) for node in unused)
        return replace(deployment, restored=restored, vertex=replace(deployment.vertex, nodes=nodes))

    def resized(self, graph: JobGraph) -> None:
        """Handle another parallelism: tasks of removed subtasks are dropped."""
        self._graph = graph
        for task in self.tasks:
            d = task.deployment
            if d.subtask >= graph.vertex(d.vertex.id).parallelism:
                # Their last figures stay in the job's totals.
                self._task_dropped(task)
                self._tasks_of_job().drop(d.attempt_id)

    def _tasks_of_job(self) -> TaskManager:
        assert self._tasks is not None
        return self._tasks

    def _task_dropped(self, task: Task) -> None:
        with self._figures_lock:
            self._figures.take([plain_figures(figures_of(task))])

    def _check_new(self) -> None:
        if self._master is not None:
            raise RuntimeError("a job runs once: prepare another one")

    def _begun(self) -> JobMaster:
        if self._master is None:
            raise RuntimeError("the job has not begun: call run()")
        return self._master

    def _close(self) -> None:
        self._ended_at = self.services.clock.monotonic()
        try:
            if self._reporting is not None:
                self._reporting.close()
        finally:
            self._requests.close()
            if self._background is not None:
                # Runs what is queued, such as deletions of files, while the directory is still there.
                self._background.close(self._graph.job_name, CLOSE_S)
            if self._searches is not None:
                self._searches.close(self._graph.job_name, SEARCH_CLOSE_S, searches=True)
            if self._copies is not None:
                self._copies.close()
            if self._temporary is not None:
                self._temporary.close()
            self._transport.close()
            self._event_loop.close()
            if self._poller is not None:
                self._poller.close()


def _dispatch(receiver: Handlers, message: Message) -> None:
    receiver.dispatch(message)


def _state_of(task: Task, executions: ExecutionGraph | None) -> ExecutionState:
    execution = None if executions is None else executions.execution(task.deployment.attempt_id)
    return ExecutionState.CREATED if execution is None else execution.state


def job_graph_of(graph: StreamGraph, services: Services) -> JobGraph:
    """Chain a graph. Raises GraphError where a loop cannot run."""
    job_graph = build_job_graph(graph, _plugin_distributions(graph, services))
    check_iterations(job_graph)
    return job_graph


def _plugin_distributions(graph: StreamGraph, services: Services) -> dict[str, Distribution]:
    names = {e.partitioner.name for e in graph.edges} - BUILT_IN.keys()
    return {name: services.partitioner(name).distribution for name in names}
