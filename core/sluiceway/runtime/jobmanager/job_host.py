"""Host of a job master: the cluster, or the process, on which its job runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from sluiceway.clock import Clock
from sluiceway.graph import JobGraph
from sluiceway.runtime.jobmanager.cancellation_timeouts import LateTask
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.runtime.messages.base import Message
from sluiceway.scheduler import SlotPool

__all__ = ["JobHost"]

T = TypeVar("T")


class JobHost(ABC):
    """Host of a job master. It is called in the job master's thread; what need not be overridden does nothing.

    Attributes:
        kills_late_tasks: whether it can end tasks that do not end by themselves; else they have no limit.

    Args:
        clock: clock of the runtime.
        slots: slots of the job, or of all jobs.
    """

    kills_late_tasks: ClassVar[bool] = False

    def __init__(self, clock: Clock, slots: SlotPool) -> None:
        self.clock = clock
        self.slots = slots

    @abstractmethod
    def send(self, worker: str, message: Message) -> None:
        """Send a message to a worker by name; dropped if the worker is gone."""

    @abstractmethod
    def post(self, action: Callable[[], None], after_s: float) -> Scheduled:
        """Call an action in the job master's thread after so many seconds. From any thread."""

    @abstractmethod
    def search(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Do blocking work of an enumerator in another thread; see :meth:`.Background.run`."""

    @abstractmethod
    def make_room(self, lacking: int) -> None:
        """Provide a number of further slots, now or soon. Raises NoResourceAvailableError if that cannot be."""

    def prepare_worker(self, worker: str) -> None:
        """Prepare a worker for deployments, which are sent to it next."""

    def look_for_slots(self) -> None:
        """Look for slots: a restart lacks some, or some may be free for others."""

    def task_late(self, task: LateTask) -> None:
        """Take a task that has not ended within the limit after it was cancelled."""

    def job_resized(self, graph: JobGraph) -> None:
        """Take the graph at another parallelism, which the job uses now."""

    def job_ended(self) -> None:
        """Take the end of the job."""

    @property
    def awaits_reason(self) -> bool:
        """True if the reason for the loss of a worker is still to come."""
        return False
