"""Job master: owns a job's execution graph, deploys it, monitors it, and ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.engine import JobFailure, JobStatus, LifecycleListener
from sluiceway.errors import CheckpointError, RescaleError
from sluiceway.graph import Execution, ExecutionGraph, ExecutionState, ExecutionVertex, JobGraph
from sluiceway.graph.check.iterations import check_rescale
from sluiceway.monitoring.infos import RescaleInfo
from sluiceway.runtime.failures.explanation import add_note, contained
from sluiceway.runtime.jobmanager.broken_links import BrokenLinks
from sluiceway.runtime.jobmanager.cancellation_timeouts import CancellationTimeouts
from sluiceway.runtime.jobmanager.checkpoint_coordinator import SavepointRequest
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointStores
from sluiceway.runtime.jobmanager.deployment_factory import TaskDeploymentFactory
from sluiceway.runtime.jobmanager.failover import Failover
from sluiceway.runtime.jobmanager.job_checkpoints import JobCheckpoints
from sluiceway.runtime.jobmanager.job_events import JobEvents
from sluiceway.runtime.jobmanager.job_host import JobHost
from sluiceway.runtime.jobmanager.job_sources import JobSources
from sluiceway.runtime.jobmanager.region_restarts import RegionRestarts
from sluiceway.runtime.jobmanager.rescaler import Rescaler
from sluiceway.runtime.jobmanager.watermark_alignment import AlignmentCoordinator
from sluiceway.runtime.logging.engine_log import DEBUG, INFO, WARNING, log
from sluiceway.runtime.messages.base import TaskMessage, TasksMessage
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.tasks import (
    AcknowledgeCheckpoint,
    AnnounceWatermark,
    CancelTask,
    DeclineCheckpoint,
    DeployTasks,
    Drained,
    ReportTask,
    ReportWatermark,
    RequestSplit,
    SendEnumeratorEvent,
    StopSource,
)
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot, edge_names
from sluiceway.scheduler import SlotSharing, restart_strategy, scheduling_strategy
from sluiceway.transport.carrier import LinkLostError
from sluiceway.util.file_names import file_name

__all__ = ["JobMaster"]


class JobMaster(Handlers):
    """Master of one job. All calls in one thread, the job master's.

    Attributes:
        name: name by which tasks address the job.
        executions: attempts of its subtasks; anew for each parallelism.
        events: events of checkpoints and restarts.
        sources: its sources.
        checkpoints: its checkpoints and savepoints.

    Args:
        graph: the job.
        settings: the options of the run.
        host: the cluster or process on which it runs.
        listener: notified of state changes.
        seed: seed of random partitioners.
        stores: stores of its checkpoints and savepoints.
        restored: snapshot to restore; None: the job starts empty.
        job: its id; it makes the names of channels unique among jobs.
        epoch: epoch of this leader of the job; messages of tasks to another one are ignored.
    """

    def __init__(
        self,
        graph: JobGraph,
        settings: Settings,
        host: JobHost,
        *,
        listener: LifecycleListener,
        seed: int,
        stores: CheckpointStores,
        restored: JobSnapshot | None = None,
        job: str = "",
        epoch: int = 0,
    ) -> None:
        self.graph = graph
        self.status = JobStatus.CREATED
        self.failure: BaseException | None = None
        self._settings = settings
        self._host = host
        self.epoch = epoch
        self.name = job or graph.job_name
        late = host.task_late if host.kills_late_tasks else None
        self._cancelling = CancellationTimeouts(host.post, settings.cancellation_timeout_ms / 1000, late)
        self._clock = clock = host.clock
        self._listener = listener
        self.slots = SlotSharing(graph, host.slots)
        self._stopping = False
        self._restored = restored
        self.events = JobEvents(graph, clock)
        self.executions = ExecutionGraph(graph, listener=self._state_changed, at_ms=clock.now_ms())
        self._strategy = scheduling_strategy(settings.scheduler, self.executions)
        self.sources = JobSources(self, host)
        self._alignment = AlignmentCoordinator(
            lambda attempt, mark: self.send(AnnounceWatermark(self.name, epoch, attempt, mark))
        )
        self._places: dict[tuple[int, int], str] = {}
        self._deployments = TaskDeploymentFactory(
            settings, edge_names(graph), self._places, seed=seed, job=job, name=self.name, epoch=epoch
        )
        self.checkpoints = JobCheckpoints(
            self, settings, host, stores, listener=listener, seed=seed, restored=restored
        )
        self._restarts = RegionRestarts(self, host)
        self._broken_links = BrokenLinks(host.post, lambda: host.awaits_reason, self._link_broken)
        self._failover = Failover(
            self.executions,
            restart_strategy(settings.restart, Random(f"{seed}/{job}")),
            clock,
            cancel=self._cancel_task,
            restart=self._restarts.begin,
            later=host.post,
            completed=lambda: self.checkpoints.completions,
            on_failure=self.events.failed,
            worker_of=lambda v: self._places.get((v.job_vertex.id, v.subtask), ""),
            job=self.name,
        )
        self._rescaler = Rescaler(self, self.name, clock, host.post)

    @property
    def failures(self) -> tuple[JobFailure, ...]:
        """Failures so far, oldest first."""
        return tuple(self._failover.history)

    @property
    def rescales(self) -> tuple[RescaleInfo, ...]:
        """Last rescales, oldest first, including a running one."""
        return tuple(self._rescaler.history)

    @property
    def restarts(self) -> int:
        """Number of restarts of parts of the job, including pending ones."""
        return self._failover.restarts

    def send(self, message: TaskMessage | TasksMessage) -> None:
        """Send a message to its task, or to each worker that runs some of its tasks."""
        if isinstance(message, TaskMessage):
            # An unknown attempt has no place, and its message is dropped.
            self._host.send(self.place_of(message.attempt) or "", message)
            return
        by_worker: dict[str, list[str]] = {}
        for attempt in message.attempts:
            by_worker.setdefault(self.place_of(attempt) or "", []).append(attempt)
        for worker, some in by_worker.items():
            self._host.send(worker, msgspec.structs.replace(message, attempts=some))

    def start(self) -> None:
        """Start the sources' enumerators, allocate slots and deploy the job."""
        if self.status is not JobStatus.CREATED:
            return
        # Enumerators before tasks: a reader may request a split as soon as it runs. After the first failure each
        # `guard` does nothing, as the job is no longer running.
        self._set_status(JobStatus.RUNNING)
        self.sources.create({} if self._restored is None else self._restored.enumerators)
        self.sources.start()
        self.guard(self._allocate_all)
        self.guard(lambda: self._deploy(self._strategy.next()))
        self.guard(self.checkpoints.coordinator.start)

    def cancel(self, within_s: float | None = None) -> None:
        """Cancel the job, or hurry a cancellation.

        Args:
            within_s: seconds after which a task that has not ended counts as stuck; None: as its options say.
        """
        if within_s is not None:
            # Also for a job that is being cancelled already: whoever wants it to end sooner calls again.
            self._cancelling.shorten(within_s)
        if self.status is JobStatus.CREATED or self.status.running:
            self._set_status(JobStatus.CANCELLING)
            self._cancel_tasks()

    def stop(self) -> None:
        """End the sources at their current positions, and let the job finish."""
        # Readers that come up later, or restart, are stopped when they report RUNNING.
        self._stopping = True
        for vertex in self.executions.subtasks():
            if vertex.state is ExecutionState.RUNNING:
                self._stop_source(vertex.job_vertex.id, vertex.current.attempt_id)

    def savepoint(self, place: str, stops: bool, done: Callable[[str, BaseException | None], None]) -> None:
        """Take a savepoint in a place, and stop with it if ``stops``; see :class:`.SavepointRequest`."""

        def answer(location: str, problem: BaseException | None) -> None:
            # Behind the failure that has aborted it: whoever is told looks at once whether the job goes on.
            self._host.post(lambda: done(location, problem), 0.0)

        name = file_name(self.name) or "job"
        self.checkpoints.savepoint(SavepointRequest(place, name, stops, answer))

    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint now; ``done`` is called with its id, or with 0 and the error."""
        self.checkpoints.checkpoint(done)

    def rescale(
        self,
        parallelism: int | None,
        steps: Mapping[str, int],
        done: Callable[[RescaleInfo | None, BaseException | None], None],
        accepted: Callable[[RescaleInfo], None] | None = None,
    ) -> None:
        """Continue at another parallelism; see :meth:`.Rescaler.begin`."""
        self._rescaler.begin(parallelism, steps, done, accepted)

    def fail_waiting_rescale(self, why: BaseException) -> bool:
        """Cancel a rescale that waits for slots; return whether there was one, and no restart waits for slots."""
        return self._rescaler.failed_to_wait(why) and not self._restarts.waits_for_slots

    def _stop_source(self, vertex_id: int, attempt_id: str) -> None:
        if self._stopping and vertex_id in self.sources:
            self.send(StopSource(self.name, self.epoch, attempt_id))

    def fail(self, cause: BaseException) -> None:
        """Fail the job, whatever its restart strategy."""
        if self.status is JobStatus.CREATED or self.status.running:
            self._fail(cause)

    def fail_over(self, cause: BaseException) -> None:
        """Restart the whole job, if the restart strategy allows it."""
        if self.status.running and not self._failover.failed_everywhere(cause):
            self._fail(cause)
        self._note_restarts()
        self._drop_broken_links()

    @handles(ReportTask)
    def _task_reported(self, message: ReportTask) -> None:
        cause = None if message.cause is None else message.cause.open()
        self._update(message.attempt, ExecutionState(message.state), cause)

    def _update(
        self, attempt_id: str, state: ExecutionState, cause: BaseException | None, *, lost: bool = False
    ) -> None:
        """Change the state of an attempt; ``lost``: it ended with its worker."""
        if state.ended:
            # Whatever the graph makes of the report, the task needs no killing any more.
            self._cancelling.ended(attempt_id)
        # Late and illegal reports, and those of unknown attempts, end here.
        if not self.executions.update(attempt_id, state, self._clock.now_ms(), cause):
            return
        if state.ended:
            # A reader that has ended holds nobody back.
            self._alignment.leave(attempt_id)
        execution = self.executions.execution(attempt_id)
        assert execution is not None
        if state is ExecutionState.RUNNING:
            # The coordinator keeps splits until then: an attempt that has not come up could lose them.
            self.sources.reader_ready(execution.vertex_id, execution.subtask)
            self._stop_source(execution.vertex_id, attempt_id)
        vertex = self.executions.subtask(execution.vertex_id, execution.subtask)
        if state.ended and not self._rescaler.holds_slots:
            self._release_slots(vertex)
        if vertex.current is execution:
            self.checkpoints.changed(vertex)
        if state is ExecutionState.FAILED and cause is not None:
            if self.status is JobStatus.CANCELLING and (lost or isinstance(cause, LinkLostError)):
                self.check_end()  # its end was requested
            elif isinstance(cause, LinkLostError) and self._defers_report(vertex):
                # Most often a worker at the other end was lost; that will be known soon, and is the cause to
                # report.
                self._broken_links.hold(attempt_id, vertex, cause)
            else:
                self._failed(vertex, cause)
            return
        if state.ended and self.status.running:
            self._failover.ended(vertex)
        self._rescaler.task_changed()
        # No strategy deploys a subtask because another one initializes.
        if self.status.running and state is not ExecutionState.INITIALIZING:
            self.guard(lambda: self._deploy(self._strategy.next()))
        self.check_end()

    def _defers_report(self, vertex: ExecutionVertex) -> bool:
        return self.status.running and not self._failover.restarts_region_of(vertex)

    def _failed(self, vertex: ExecutionVertex, cause: BaseException) -> None:
        # With its last savepoint complete, the job's sinks commit: a restart would write that output again.
        ended_with = self.checkpoints.ended_with
        if ended_with and self.status.running:
            add_note(cause, f"the job was about to end, with the savepoint {ended_with}, which is complete")
            self._fail(cause)
        elif self.status.running and self._rescaler.failed(vertex, cause):
            self.check_end()
        elif not self.status.running or not self._failover.failed(vertex, cause):
            self._fail(cause)
        self._note_restarts()
        self._drop_broken_links()

    def _link_broken(self, vertex: ExecutionVertex, cause: BaseException) -> None:
        if self.status is JobStatus.CANCELLING:
            self.check_end()
        else:
            self._failed(vertex, cause)

    def _drop_broken_links(self) -> None:
        """Drop broken links: after a restart of everything they need no explanation."""
        self._broken_links.drop(self._failover.restarts_region_of)

    @handles(AcknowledgeCheckpoint)
    def _acknowledged(self, message: AcknowledgeCheckpoint) -> None:
        coordinator = self.checkpoints.coordinator
        try:
            objects = () if message.objects is None else message.objects.open()
        except Exception as error:
            error.add_note("while the job manager unpickled what a task has acknowledged the checkpoint with")
            coordinator.decline(message.attempt, message.checkpoint, error)
            return
        snapshot = TaskSnapshot.of_entry(
            message.entry, message.checkpoint, message.savepoint, message.unaligned, objects
        )
        coordinator.acknowledge(message.attempt, message.checkpoint, snapshot)

    @handles(DeclineCheckpoint)
    def _declined(self, message: DeclineCheckpoint) -> None:
        self.checkpoints.coordinator.decline(message.attempt, message.checkpoint, message.cause.open())

    @handles(Drained)
    def _drained(self, message: Drained) -> None:
        execution = self.executions.execution(message.attempt)
        if execution is not None and not execution.state.ended:
            self.checkpoints.coordinator.drained(message.attempt)

    def place_of(self, attempt_id: str) -> str | None:
        """Return the worker on which an attempt runs, or None if it is not known."""
        execution = self.executions.execution(attempt_id)
        return None if execution is None else self._places.get((execution.vertex_id, execution.subtask))

    def workers_lost(self, workers: Sequence[str], cause: BaseException) -> None:
        """Fail all that ran on workers that were lost together; one failure for the restart strategy."""
        if isinstance(self.failure, LinkLostError) and not self.status.ended:
            # A neighbour has reported the broken link before the loss was known.
            self.failure = cause
            if self._failover.given_up:
                add_note(cause, self._failover.given_up)
        with self._failover.as_one_failure():
            for worker in workers:  # in this order: the first failure is the one in the history
                for vertex in self.executions.subtasks():
                    place = self._places.get((vertex.job_vertex.id, vertex.subtask))
                    if place == worker and not vertex.state.ended:
                        self._update(vertex.current.attempt_id, ExecutionState.FAILED, cause, lost=True)
        if not self._rescaler.holds_slots:
            # Gone with their workers: another region that shares one would be deployed there again.
            for vertex in self.executions.subtasks():
                who = vertex.job_vertex.id, vertex.subtask
                if vertex.state.ended and self._places.get(who) in workers:
                    self.slots.release(*who)
        self._broken_links.report_all()

    @handles(RequestSplit)
    def _split_requested(self, message: RequestSplit) -> None:
        self.sources.split_requested(message.vertex, message.subtask)

    @handles(SendEnumeratorEvent)
    def _event_received(self, message: SendEnumeratorEvent) -> None:
        execution = self.executions.execution(message.attempt)
        # One of an earlier attempt says nothing of the reader that has taken its place.
        if execution is not None and execution.state is ExecutionState.RUNNING:
            event = message.event
            self.guard(lambda: self.sources.event_received(execution.vertex_id, execution.subtask, event.open()))

    @handles(ReportWatermark)
    def _watermark_reported(self, message: ReportWatermark) -> None:
        execution = self.executions.execution(message.attempt)
        if execution is not None and not execution.state.ended:
            self._alignment.report(message.group, message.attempt, message.mark)

    # ---- deployment -----------------------------------------------------------------------------------------

    def _allocate_all(self) -> None:
        """Allocate a slot for every subtask before the first is deployed: each needs the places of its peers."""
        self.allocate(self.executions.subtasks())

    def allocate(self, subtasks: Iterable[ExecutionVertex]) -> None:
        """Allocate slots for subtasks, for all or for none. Raises NoResourceAvailableError."""
        slots = self.slots.allocate((v.job_vertex.id, v.subtask) for v in subtasks)
        self._places.update((who, slot.worker) for who, slot in slots.items())

    # ---- restart --------------------------------------------------------------------------------------------

    @property
    def waits_for_slots(self) -> bool:
        """True while a restart or a rescale waits for slots."""
        return self._restarts.waits_for_slots or self._rescaler.waits_for_slots

    @property
    def slots_wanted(self) -> int:
        """Number of slots that the regions lack which are to be restarted, some of them after their delay."""
        if not self.status.running:
            return 0
        pending = (*self._failover.restarting, *self._restarts.pending)
        return self.slots.missing((v.job_vertex.id, v.subtask) for region in pending for v in region)

    def slots_came(self) -> None:
        """Retry restarts and rescales that lack slots."""
        self._rescaler.slots_came()
        self._restarts.slots_came()

    @property
    def _restart_pending(self) -> bool:
        """True while a region waits for its restart."""
        return bool(self._failover.restarting or self._restarts.pending)

    def _note_restarts(self) -> None:
        """Set the status to RESTARTING while a region waits for its restart, and back to RUNNING."""
        if self.status.running:
            new = JobStatus.RESTARTING if self._restart_pending else JobStatus.RUNNING
            if new is not self.status:
                self._set_status(new)

    def restart_failed(self, region: tuple[ExecutionVertex, ...], problem: BaseException) -> None:
        """Restart a region later whose checkpoint could not be read, or fail the job."""
        # A storage may be available again later.
        if not (isinstance(problem, CheckpointError) and self._failover.not_begun(region, problem)):
            self._fail(problem)

    def restart_region(self, region: tuple[ExecutionVertex, ...]) -> None:
        """Create new attempts of a region, which has its slots, and deploy them."""
        # All pending checkpoints end, also those that wait for no task of this region.
        self.checkpoints.restarting()
        for vertex in region:
            self.sources.reader_failed(vertex.job_vertex.id, vertex.subtask)
        if self.failure is not None:  # an enumerator's: nobody would deploy an attempt, and all would wait for it
            self.check_end()
            return
        for vertex in region:
            vertex.restart(self._clock.now_ms())
        self._note_restarts()
        self.guard(lambda: self._deploy(self._strategy.next()))

    def _deploy(self, vertices: Sequence[ExecutionVertex]) -> None:
        sent: set[str] = set()
        try:
            self._send_deployments(vertices, sent)
        except BaseException as error:
            # No worker will report the end of what was not sent to it.
            for vertex in vertices:
                place = vertex.job_vertex.id, vertex.subtask
                if vertex.state is ExecutionState.DEPLOYING and self._places.get(place) not in sent:
                    vertex.current.fail(error, self._clock.now_ms())
                    if not self._rescaler.holds_slots:
                        self._release_slots(vertex)
            raise

    def _send_deployments(self, vertices: Sequence[ExecutionVertex], sent: set[str]) -> None:
        """Deploy attempts; note the workers that got theirs."""
        by_worker: dict[str, list[TaskDeployment]] = {}
        snapshot = self.checkpoints.snapshot() if vertices else None
        path = self.checkpoints.path
        for vertex in vertices:
            execution = vertex.current
            now = self._clock.now_ms()
            # Two compare-and-sets: an attempt that was cancelled since the strategy chose it is left out.
            scheduled = execution.transition(ExecutionState.CREATED, ExecutionState.SCHEDULED, now)
            if scheduled and execution.transition(ExecutionState.SCHEDULED, ExecutionState.DEPLOYING, now):
                place = self._places[vertex.job_vertex.id, vertex.subtask]
                deployment = self._deployments.make(self.executions, vertex, snapshot, path)
                by_worker.setdefault(place, []).append(deployment)
        # One message per worker: it opens the consumers' ends of all its channels before the producers' ends.
        for worker, some in by_worker.items():
            self._host.prepare_worker(worker)
            attempts = [deployment.attempt_id for deployment in some]
            self._host.send(worker, DeployTasks(self.name, self.epoch, attempts, Payload(some)))
            sent.add(worker)

    def guard(self, action: Callable[[], None], note: str | None = None) -> None:
        """Run an action while the job runs; an exception fails the job, with the note."""
        if not self.status.running:
            return
        try:
            action()
        except BaseException as raised:  # no enumerator may end the process, which runs other jobs, too
            error = contained(raised, "an enumerator")
            if note is not None:
                add_note(error, note)
            if self._rescaler.failed(None, error):
                self.check_end()
            else:
                self._fail(error)

    # ---- another parallelism, for the rescaler ----------------------------------------------------------------

    def check_rescalable(self) -> None:
        """Raise an error if the job is ending or restarting, or can take no checkpoint."""
        if self._stopping:
            raise RescaleError("the job ends: its sources were stopped")
        if self._restart_pending or self._broken_links:
            raise RescaleError("the job is being restarted after a failure: try again when it runs")
        check_rescale(self.graph)

    def suspend(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint with which all tasks end."""
        self.checkpoints.suspend(done)

    def load(self, loaded: Callable[[BaseException | None], None]) -> None:
        """Read the last checkpoint; see :meth:`.JobCheckpoints.load`."""
        self.checkpoints.load(loaded)

    def resize(self, graph: JobGraph) -> None:
        """Create the subtasks and enumerators anew from the last checkpoint, which :meth:`load` has read."""
        snapshot = self.checkpoints.snapshot()
        # Closed before any change: from here on the enumerators of the old parallelism assign nothing.
        error = self.sources.close()
        if error is not None:
            log(WARNING, "jobs", "an enumerator could not be closed", job=self.name, error=error)
        self._broken_links.clear()
        self.slots.release_all()
        self._use(graph, self.executions)
        self.sources.create({} if snapshot is None else _copies(snapshot.enumerators))
        self.sources.start_or_raise()

    def resize_ahead(self, graph: JobGraph) -> None:
        """Set the parallelism of a job that has not started."""
        self._use(graph, None)
        self._host.look_for_slots()  # the slots may suffice now

    def _use(self, graph: JobGraph, before: ExecutionGraph | None) -> None:
        self.graph = graph
        self.slots = self.slots.resized(graph)
        now_ms = self._clock.now_ms()
        self.executions = ExecutionGraph(graph, listener=self._state_changed, at_ms=now_ms, before=before)
        self._strategy = scheduling_strategy(self._settings.scheduler, self.executions)
        self._failover.use(self.executions)
        self.checkpoints.resized()
        self._host.job_resized(graph)

    def begin_all(self) -> None:
        """Allocate slots for all subtasks and deploy them."""
        self._allocate_all()
        self._deploy(self._strategy.next())

    def begin_all_anew(self) -> None:
        """Restart all regions as after a failure, as soon as there are slots."""
        self.cancel_all()  # none of them was deployed
        for region in self._failover.regions:
            self._restarts.begin(region)

    def cancel_all(self) -> None:
        """Cancel all subtasks that have not ended."""
        for vertex in self.executions.subtasks():
            if not vertex.state.ended:
                self._cancel_task(vertex)

    def note_failure(self, vertex: ExecutionVertex | None, cause: BaseException) -> None:
        """Record a failure after which all subtasks restart."""
        self._failover.note(vertex, cause)

    def end_rescale(self) -> None:
        """Release the slots of subtasks that have ended, and take checkpoints again."""
        for vertex in self.executions.subtasks():
            if vertex.state.ended:
                # Those that ended during the switch have kept theirs.
                self._release_slots(vertex)
        self.checkpoints.coordinator.start()
        self.checkpoints.coordinator.maybe_trigger()

    def make_room(self, slots: int) -> None:
        """Provide a number of further slots; see :meth:`.JobHost.make_room`."""
        self._host.make_room(slots)

    def slots_released(self) -> None:
        """Notify jobs that wait for slots."""
        self._host.look_for_slots()

    # ---- end of the job -------------------------------------------------------------------------------------

    def _fail(self, cause: BaseException) -> None:
        # The first failure is the job's; later ones, of tasks that are being cancelled, are its consequences.
        if self.failure is None and not self.status.ended:
            self.failure = cause
            self._failover.failed_otherwise(cause)
            self._set_status(JobStatus.FAILING)
            self._cancel_tasks()
        self.check_end()

    def _cancel_tasks(self) -> None:
        for vertex in self.executions.subtasks():
            self._cancel_task(vertex)
        self.check_end()

    def _cancel_task(self, vertex: ExecutionVertex) -> None:
        if vertex.current.cancel(self._clock.now_ms()):
            if vertex.state is ExecutionState.CANCELING:
                self._send_cancel(vertex.current.attempt_id)
            elif not self._rescaler.holds_slots:  # not deployed, so no report of its end will release its slot
                self._release_slots(vertex)

    def _release_slots(self, vertex: ExecutionVertex) -> None:
        """Release the slots of a region with the last of its subtasks.

        What a finished subtask has sent may wait in its worker for a slower consumer, and a worker without an
        allocated slot may be stopped.
        """
        region = self._failover.region_of(vertex)
        if all(each.state.ended for each in region):
            for each in region:
                self.slots.release(each.job_vertex.id, each.subtask)

    def _send_cancel(self, attempt_id: str) -> None:
        """Cancel an attempt, within the limit."""
        self.send(CancelTask(self.name, self.epoch, attempt_id))
        execution = self.executions.execution(attempt_id)
        if execution is not None:
            name = f"{execution.vertex_name!r}, subtask {execution.subtask + 1}"
            worker = self.place_of(attempt_id) or ""
            self._cancelling.begin(attempt_id, worker, name, lambda: execution.state.ended)

    def check_end(self) -> None:
        """End the job if nothing of it runs or restarts any more."""
        # The job ends only with its last task, also if it has failed: a slot is free when nothing runs in it.
        if self.status.ended or not all(v.state.ended for v in self.executions.subtasks()):
            return
        # All subtasks have ended, but a restart or a rescale is about to create new attempts. The rescaler comes
        # last, since its answer may deploy them at once.
        if self.status.running and (self._restart_pending or self._broken_links or self._rescaler.all_ended()):
            return
        error = self.sources.close()
        if error is not None and self.failure is None:
            self.failure = error
            self._failover.failed_otherwise(error)
        if self.failure is not None:
            self._set_status(JobStatus.FAILED)
        elif self.status is JobStatus.CANCELLING:
            self._set_status(JobStatus.CANCELED)
        else:
            self._set_status(JobStatus.FINISHED)

    def _set_status(self, new: JobStatus) -> None:
        old, self.status = self.status, new
        log(INFO, "jobs", f"is {new.value}, was {old.value}", job=self.name)
        if not new.running:
            self.checkpoints.coordinator.stop()
            self._rescaler.abandon(f"the job is {new.value}")
        if new.ended:
            self.slots.release_all()
            self._cancelling.stop()
            self._failover.stop()
            self.checkpoints.ended()
            self.events.ended()
            self._host.job_ended()
        self._listener.job_status_changed(self.graph.job_name, old, new)

    def _state_changed(self, execution: Execution, old: ExecutionState, new: ExecutionState) -> None:
        if new is not ExecutionState.FAILED:
            name = f"{execution.vertex_name!r}, subtask {execution.subtask + 1}, attempt {execution.attempt}"
            log(DEBUG, "jobs", f"{name}, is {new.value}", job=self.name)
        self.events.state_changed(execution, new)
        self._listener.task_state_changed(
            self.graph.job_name, execution.vertex_name, execution.subtask, old.value, new.value
        )


def _copies(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of enumerator states, which enumerators change: the job may be restored from them again."""
    copies = {}
    for uid, state in states.items():
        try:
            copies[uid] = deepcopy(state)
        except Exception:  # in one process: objects of the program that cannot be copied
            copies[uid] = state
    return copies
