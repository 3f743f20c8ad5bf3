"""Job on a worker: its tasks, the results that they collect, and what is asked about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluiceway.config.settings import Settings
from sluiceway.connector import WriterContext
from sluiceway.errors import SluicewayError
from sluiceway.graph import ExecutionState
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.state_queries import read_state
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.error_kinds import kind_of
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.keys import KeysSampled, SampleKeys
from sluiceway.runtime.messages.payload import Payload
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.messages.tasks import ReportTask
from sluiceway.runtime.messages.workers import (
    FoundState,
    HoldResults,
    ReadState,
    Results,
    SampleStacks,
    StacksSampled,
    StateRead,
    SubmitJob,
)
from sluiceway.runtime.taskmanager.local_recovery import LocalCopyRegistration
from sluiceway.runtime.taskmanager.task_manager import TaskManager
from sluiceway.serializers.program_classes import ProgramClasses

__all__ = ["JobWorker", "Program", "WorkerJob"]


class JobWorker(Protocol):
    """Worker process, as its jobs see it."""

    @property
    def name(self) -> str:
        """Name of the worker."""

    def send(self, message: Message) -> None:
        """Send a message to the job manager."""

    def mail(self, action: Callable[[], None]) -> None:
        """Call an action in the loop's thread. From any thread."""

    def send_metrics(self, name: str) -> list[TaskFigures]:
        """Send the metrics of a job's tasks on this worker, and return them."""

    def explained(self, raised: BaseException, doing: str) -> Exception:
        """Return an exception of this worker with notes of its action and machine."""

    def sample_stacks(
        self, tasks: TaskManager, seconds: float, rate: float, done: Callable[[StackSamples | None, str], None]
    ) -> None:
        """Sample the stacks of this process and of the tasks of one job."""

    def sample_keys(
        self,
        tasks: TaskManager,
        vertices: list[int],
        seconds: float,
        done: Callable[[list[KeySample] | None, str], None],
    ) -> None:
        """Count the keys of the records that the tasks of one job receive."""


@dataclass(frozen=True, slots=True)
class Program:
    """Data of a job that a worker needs before its first task; ``path`` is the search path of its modules.

    ``temporary`` is the directory of checkpoints where the job names no place for them, and workers share files
    with the job manager; else empty.
    """

    name: str
    settings: Settings
    path: tuple[str, ...] = ()
    temporary: str = ""


class WorkerJob(Handlers):
    """Job on a worker: handles messages about the job; those about its tasks go to the task manager.

    Args:
        worker: the process.
        message: the message that began it.
        copies: registration of the local copies of its checkpoints.
        make_tasks: creates its task manager, with what sends a task's message, what unpickles a payload, and the
            classes that came with payloads.

    Attributes:
        over: attempts that have ended and whose last metrics are still to be sent.
    """

    def __init__(
        self,
        worker: JobWorker,
        message: SubmitJob,
        copies: LocalCopyRegistration,
        make_tasks: Callable[
            [Callable[[Message], None], Callable[[Payload[Any], str], Any], ProgramClasses], TaskManager
        ],
    ) -> None:
        self.epoch = message.epoch
        self.over: set[str] = set()
        self._copies = copies
        self._job = message.job
        self._worker = worker
        self._handles: dict[int, _ResultHandle] = {}
        self._classes = ProgramClasses()
        self.tasks = make_tasks(self.send, self.open, self._classes)

    def close(self) -> None:
        """Cancel its tasks, and release what it holds."""
        self.tasks.cancel_all()
        self.tasks.close()
        self._copies.close()

    def send(self, message: Message) -> None:
        """Send a message of a task to the job master; its last metrics precede the report of its end."""
        # Metrics first: with the report of the last task the job may end, and later metrics are dropped.
        if isinstance(message, ReportTask) and ExecutionState(message.state).ended:
            self._worker.send_metrics(self._job)
            # Dropped by _measure, when nothing of it is under way any more.
            self.over.add(message.attempt)
        self._worker.send(message)

    def open(self, payload: Payload[Any], what: str) -> Any:
        """Unpickle a payload for a task, with handles in place of the program's objects."""
        try:
            return payload.open(self.handle, self._classes)
        except BaseException as raised:  # modules of the user are imported here
            error = self._worker.explained(raised, f"unpacked the {what} that it was sent")
        raise error

    def handle(self, number: int) -> _ResultHandle:
        """Return the stand-in for an object of the program that collects results."""
        if number not in self._handles:
            self._handles[number] = _ResultHandle(self._worker, self._job, self.epoch, number)
        return self._handles[number]

    @handles(HoldResults)
    def _hold_results(self, message: HoldResults) -> None:
        self.handle(message.number).hold(message.hold)

    @handles(ReadState)
    def _read_state(self, message: ReadState) -> None:
        def done(found: FoundState | SluicewayError) -> None:
            answer = (None, str(found), kind_of(found)) if isinstance(found, SluicewayError) else (found, "", "")
            self._worker.send(StateRead(message.job, message.epoch, message.attempt, message.number, *answer))

        read_state(self.tasks, message, done)

    @handles(SampleStacks)
    def _sample_stacks(self, message: SampleStacks) -> None:
        def done(samples: StackSamples | None, problem: str) -> None:
            name = self._worker.name
            answer = StacksSampled(message.job, message.epoch, message.number, name, samples, problem)
            self._worker.mail(lambda: self._worker.send(answer))  # this may be the sampler's thread

        self._worker.sample_stacks(self.tasks, message.seconds, message.rate, done)

    @handles(SampleKeys)
    def _sample_keys(self, message: SampleKeys) -> None:
        def done(samples: list[KeySample] | None, problem: str) -> None:
            name = self._worker.name
            self._worker.send(KeysSampled(message.job, message.epoch, message.number, name, samples, problem))

        self._worker.sample_keys(self.tasks, message.vertices, message.seconds, done)


class _ResultHandle:
    """Stand-in, in a worker, for an object of the program that collects results."""

    def __init__(self, worker: JobWorker, job: str, epoch: int, number: int) -> None:
        self._worker = worker
        self._job = job
        self._epoch = epoch
        self._number = number
        self.full = False
        self.writers: list[WriterContext] = []

    def _extend(self, values: Sequence[Any]) -> None:
        self._worker.send(Results(self._job, self._epoch, self._number, dump(list(values))))

    put = _extend

    def hold(self, hold: bool) -> None:
        """Pause or resume the writers: the program's buffer is full, or accepts results again."""
        self.full = hold
        if not hold:
            for context in self.writers:
                context.wake()
