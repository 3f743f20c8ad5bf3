"""Change of the parallelism of a running job, from the request to the last subtask that runs again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

import msgspec

from sluiceway.clock import Clock
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, NoResourceAvailableError, RescaleError, SluicewayError
from sluiceway.graph import ExecutionGraph, ExecutionState, ExecutionVertex, JobGraph, slots_required
from sluiceway.graph.rescaling import parallelism_of, rescaled
from sluiceway.monitoring.infos import RESCALES_KEPT, RescaleInfo
from sluiceway.runtime.failures.error_texts import describe
from sluiceway.runtime.failures.explanation import contained
from sluiceway.runtime.logging.engine_log import INFO, WARNING, log
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.scheduler import SlotSharing

__all__ = ["RescalableJob", "Rescaler"]

_SLOTS_S: Final = 60.0
"""Seconds that workers being started may take to offer the missing slots."""

# A storage may be away for a minute, in which the job stands still.
_READ_AGAIN_S: Final = 1.0
_MOST_READS: Final = 60

_UP: Final = frozenset({ExecutionState.RUNNING, ExecutionState.FINISHED})

Done = Callable[[RescaleInfo | None, BaseException | None], None]


class _Phase(Enum):
    IDLE = "idle"
    WAITING_FOR_SLOTS = "waiting for slots"
    TAKING_CHECKPOINT = "taking a checkpoint"
    ENDING_TASKS = "ending tasks"
    RESTORING = "restoring"
    RETURNING = "returning to the parallelism before"


_SWITCHING: Final = frozenset({_Phase.ENDING_TASKS, _Phase.RESTORING, _Phase.RETURNING})


class RescalableJob(Protocol):
    """Interface of a job to its rescaler. Job master's thread."""

    graph: JobGraph
    executions: ExecutionGraph
    status: JobStatus

    @property
    def slots(self) -> SlotSharing:
        """Slots of the job."""

    def check_rescalable(self) -> None:
        """Raise SluicewayError if the job cannot be stopped now."""

    def make_room(self, slots: int) -> None:
        """Provide a number of further slots, now or soon. Raises NoResourceAvailableError."""

    def suspend(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint with which all tasks end; ``done`` is called with its id, or with 0 and the error."""

    def load(self, loaded: Callable[[BaseException | None], None]) -> None:
        """Read the last checkpoint; ``loaded`` is called, at once or later, with None or the error."""

    def resize(self, graph: JobGraph) -> None:
        """Create the subtasks and enumerators anew from the checkpoint that was read; all tasks have ended.

        Raises:
            BaseException: what an enumerator has raised.
        """

    def resize_ahead(self, graph: JobGraph) -> None:
        """Set the parallelism of a job that has not started."""

    def begin_all(self) -> None:
        """Allocate slots for all subtasks and deploy them. Raises the error that prevents it."""

    def begin_all_anew(self) -> None:
        """Restart all regions as after a failure, as soon as there are slots."""

    def cancel_all(self) -> None:
        """Cancel all subtasks that have not ended."""

    def note_failure(self, vertex: ExecutionVertex | None, cause: BaseException) -> None:
        """Record a failure after which all subtasks restart."""

    def end_rescale(self) -> None:
        """Release the slots of subtasks that have ended, and take checkpoints again."""

    def slots_released(self) -> None:
        """Notify jobs that wait for slots."""

    def fail(self, cause: BaseException) -> None:
        """End the job with a failure."""


class Rescaler:
    """State machine of one rescale at a time. All calls in the job master's thread.

    A job that waits to begin begins with the new parallelism. Of one that runs, nothing stops before the slots
    are reserved. Then a checkpoint is taken as a savepoint is that a job ends with: what comes behind its barriers
    is not processed, and sinks commit with it. When all tasks have ended, the job is deployed from that checkpoint
    at the new parallelism. A failure before all subtasks run there takes the job back to the old parallelism, from
    the same checkpoint, whatever the restart strategy says. A failure after that is one like any other.

    Args:
        job: the job.
        name: its id, for the log.
        clock: for time stamps.
        post: calls an action in this thread after a delay in seconds.

    Attributes:
        history: the last rescales, oldest first, with the one that is under way.
    """

    def __init__(
        self,
        job: RescalableJob,
        name: str,
        clock: Clock,
        post: Callable[[Callable[[], None], float], Scheduled],
    ) -> None:
        self.history: deque[RescaleInfo] = deque(maxlen=RESCALES_KEPT)
        self._job = job
        self._name = name
        self._clock = clock
        self._post = post
        self._phase = _Phase.IDLE
        self._before = self._after = job.graph
        self._done: Done | None = None
        self._extra = 0
        self._problem: BaseException | None = None
        self._noted = False
        self._stopped_ms = 0
        self._reads = 0
        self._loading = False
        self._timer: Scheduled | None = None

    @property
    def holds_slots(self) -> bool:
        """True while subtasks that end keep their slots for the next attempts."""
        return self._phase in _SWITCHING

    @property
    def waits_for_slots(self) -> bool:
        """True while slots are missing that are needed before any task is stopped."""
        return self._phase is _Phase.WAITING_FOR_SLOTS

    def begin(
        self,
        parallelism: int | None,
        steps: Mapping[str, int],
        done: Done,
        accepted: Callable[[RescaleInfo], None] | None = None,
    ) -> None:
        """Rescale the job; arguments as for :func:`sluiceway.graph.rescaling.rescaled`.

        Args:
            parallelism: parallelism of the steps that follow the job's.
            steps: parallelism of single steps.
            done: called once, now or later: with the result, or with the error if the job keeps its parallelism.
            accepted: called before, once the request is accepted.
        """
        try:
            # Everything that can be refused is refused before anything is reserved or stopped.
            self._check()
            after = rescaled(self._job.graph, parallelism, steps)
            info = self._info(parallelism_of(self._job.graph), parallelism_of(after))
            if info.before == info.after:
                if accepted is not None:
                    accepted(info)
                done(info, None)
                return
            extra = max(0, _slots(after) - self._job.slots.held)
            if extra:
                self._job.make_room(extra)
        except SluicewayError as error:
            done(None, error if isinstance(error, RescaleError) else _refusal(f"not rescaled: {error}", error))
            return
        # A job that waits for its first slots has no tasks: it begins with the new parallelism.
        if self._job.status is JobStatus.CREATED:
            info = msgspec.structs.replace(info, status="completed", ended_ms=info.requested_ms)
            self.history.append(info)
            self._job.resize_ahead(after)
            if accepted is not None:
                accepted(info)
            done(info, None)
            return
        # A job that runs: slots first, then the checkpoint, then the switch.
        self._before, self._after, self._done, self._extra = self._job.graph, after, done, extra
        self._problem, self._stopped_ms, self._reads = None, 0, 0
        self.history.append(info)
        log(INFO, "jobs", f"is being rescaled: {_changes(info)}", job=self._name)
        self._phase = _Phase.WAITING_FOR_SLOTS
        self._timer = self._post(self._no_slots, _SLOTS_S)
        if accepted is not None:
            accepted(info)
        # The slots may be free already.
        self.slots_came()

    def _check(self) -> None:
        if self._phase is not _Phase.IDLE:
            raise RescaleError(f"the job is being rescaled already ({self._phase.value}): try again when it runs")
        if self._job.status is not JobStatus.CREATED and not self._job.status.running:
            raise RescaleError(f"the job is {self._job.status.value}: only a job that runs can be rescaled")
        self._job.check_rescalable()

    def _info(self, before: dict[str, int], after: dict[str, int]) -> RescaleInfo:
        now_ms = self._clock.now_ms()
        if before == after:
            return RescaleInfo(now_ms, now_ms, "completed", "", before, after)
        return RescaleInfo(now_ms, 0, "in_progress", "", before, after)

    # ---- slots ------------------------------------------------------------------------------------------------

    def slots_came(self) -> None:
        """Continue a rescale that waits for slots."""
        if self._phase is not _Phase.WAITING_FOR_SLOTS:
            return
        try:
            self._job.slots.reserve(self._extra)
        except NoResourceAvailableError:
            return
        self._stop_timer()
        self._phase = _Phase.TAKING_CHECKPOINT
        self._job.suspend(self._suspended)

    def _no_slots(self) -> None:
        self._timer = None
        self._refuse(
            RescaleError(f"{self._extra} more slots are needed, which were not free within {_SLOTS_S:g} s")
        )

    def failed_to_wait(self, why: BaseException) -> bool:
        """Stop waiting for slots; return whether this rescale has waited."""
        waited = self.waits_for_slots
        if waited:
            self._refuse(why)
        return waited

    # ---- the checkpoint ---------------------------------------------------------------------------------------

    def _suspended(self, checkpoint_id: int, problem: BaseException | None) -> None:
        if self._phase is not _Phase.TAKING_CHECKPOINT:
            return  # the job is about to end
        if problem is not None:
            self._refuse(problem)
            return
        self._phase, self._noted = _Phase.ENDING_TASKS, False
        self._stopped_ms = self._clock.now_ms()
        self.history[-1] = msgspec.structs.replace(self.history[-1], checkpoint=checkpoint_id)

    def _refuse(self, problem: BaseException) -> None:
        """Refuse the rescale; no task was stopped."""
        self._job.slots.release_reserved()
        self._end("failed", f"the job keeps its parallelism: {describe(problem)}", problem)

    # ---- from the one to the other ----------------------------------------------------------------------------

    def all_ended(self) -> bool:
        """Handle the end of all tasks; return whether they are restarted."""
        if self._phase not in (_Phase.ENDING_TASKS, _Phase.RETURNING):
            return False
        # A timer is running where the checkpoint could not be read: it begins anew.
        if self._timer is None and not self._loading:
            self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._timer = None
        self._loading = True
        self._job.load(self._loaded)

    def _loaded(self, problem: BaseException | None) -> None:
        self._loading = False
        if self._phase not in (_Phase.ENDING_TASKS, _Phase.RETURNING):
            return  # the job is about to end
        if problem is not None:
            self._read_again(problem)
        elif self._phase is _Phase.ENDING_TASKS:
            self._restore()
        else:
            self._return()

    def _restore(self) -> None:
        try:
            self._phase, self._noted = _Phase.RESTORING, False
            self._job.resize(self._after)
            self._job.begin_all()
        except BaseException as raised:  # errors of users' enumerators
            self._not_begun(contained(raised, "an enumerator"))

    def _not_begun(self, error: BaseException) -> None:
        self.failed(None, error)
        if all(v.state.ended for v in self._job.executions.subtasks()):  # usually none was deployed
            self._begin_anew()

    def _return(self) -> None:
        try:
            self._job.resize(self._before)
        except BaseException as raised:
            self._job.fail(contained(raised, "an enumerator"))
            return
        assert self._problem is not None
        problem = self._problem
        why = f"the job failed at the new parallelism, and has its earlier one again: {describe(problem)}"
        # From here on a failure of a subtask is one like any other.
        self._end("failed", why, problem)
        self._job.begin_all_anew()

    def _read_again(self, error: BaseException) -> None:
        """Retry reading the checkpoint: no task runs, and there is nothing else to restore."""
        self._reads += 1
        if self._reads > _MOST_READS or not isinstance(error, CheckpointError):
            self._job.fail(error)
            return
        log(WARNING, "jobs", f"is being rescaled, and waits for its checkpoint: {describe(error)}", job=self._name)
        self._timer = self._post(self._begin_anew, _READ_AGAIN_S)

    def task_changed(self) -> None:
        """Handle a subtask that runs or has finished."""
        if self._phase is _Phase.RESTORING and all(v.state in _UP for v in self._job.executions.subtasks()):
            self._end("completed", "")

    def failed(self, vertex: ExecutionVertex | None, cause: BaseException) -> bool:
        """Handle a failure of a subtask, or with None of anything else; return whether all subtasks restart."""
        self.failed_to_wait(cause)
        if self._phase not in _SWITCHING:
            return False
        # While the tasks end, a failure costs nothing: all of them are deployed anew in any case.
        if self._phase is _Phase.RESTORING:
            self._phase, self._problem = _Phase.RETURNING, cause
        if not self._noted:  # later ones come from the same worker, or from links to it
            self._noted = True
            self._job.note_failure(vertex, cause)
        self._job.cancel_all()
        return True

    def abandon(self, why: str) -> None:
        """Cancel the rescale: the job is about to end."""
        if self._phase is not _Phase.IDLE:
            self._end("failed", why)

    # ---- the end ----------------------------------------------------------------------------------------------

    def _end(self, status: str, reason: str, cause: BaseException | None = None) -> None:
        # The phase is reset before anything is called that asks for it, such as whether ending subtasks keep their
        # slots.
        now_ms, switched = self._clock.now_ms(), self._phase in _SWITCHING
        self._stop_timer()
        self._phase = _Phase.IDLE
        info = self.history[-1] = msgspec.structs.replace(
            self.history[-1],
            ended_ms=now_ms,
            status=status,
            reason=reason,
            stopped_ms=max(0, now_ms - self._stopped_ms) if switched and self._stopped_ms else 0,
        )
        self._problem = None
        if switched and self._job.status.running:
            self._job.end_rescale()
        self._job.slots_released()
        level = INFO if status == "completed" else WARNING
        log(
            level,
            "jobs",
            f"was rescaled: {_changes(info)}" if not reason else f"was not rescaled: {reason}",
            job=self._name,
        )
        done, self._done = self._done, None
        if done is not None:
            if reason:
                done(None, _refusal(reason, cause))
            else:
                done(info, None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _refusal(reason: str, cause: BaseException | None) -> RescaleError:
    error = RescaleError(reason)
    error.__cause__ = cause
    return error


def _slots(graph: JobGraph) -> int:
    return sum(slots_required(graph).values())


def _changes(info: RescaleInfo) -> str:
    changed = (uid for uid in info.after if info.after[uid] != info.before.get(uid))
    return ", ".join(f"{uid!r} from {info.before.get(uid)} to {info.after[uid]}" for uid in changed)
