"""End of workers whose thread is stuck in a call: their stacks are read first, so that the call can be named."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from sluiceway.monitoring.processes import ProcessReadings
from sluiceway.runtime.cluster.process_queries import ProcessQueries
from sluiceway.runtime.cluster.resource_manager import ResourceManager
from sluiceway.runtime.jobmanager.cancellation_timeouts import LateTask
from sluiceway.runtime.logging.engine_log import WARNING, log

__all__ = ["StuckWorkers"]

# Seconds to wait for the stacks. The worker is killed also without them.
_DUMP_S: Final = 1.0
_KEPT: Final = 16


class StuckWorkers:
    """Kills workers that do not end what they were asked to end. From the job manager's loop.

    Attributes:
        killed: a sentence for each of the last workers that were killed, with the task and the line of its call.

    Args:
        processes: reads the stacks, through a thread of the worker that its tasks cannot block.
        resources: kills the workers.
    """

    def __init__(self, processes: ProcessQueries, resources: ResourceManager) -> None:
        self.killed: deque[str] = deque(maxlen=_KEPT)
        self._processes = processes
        self._resources = resources
        self._asked: set[str] = set()

    def late(self, task: LateTask) -> None:
        """Kill the worker of a task that has not ended after it was cancelled, unless the task ends meanwhile."""
        when = f"{task.limit_s:g} s after {{}} had been cancelled"
        self._end(task.worker, when, f"had not ended {task.name}", task.ended)

    def end_connected(self, waited_s: float) -> None:
        """Kill the workers that are still connected, although they were stopped ``waited_s`` seconds ago."""
        for worker in self._resources.names():
            self._end(
                worker, f"{waited_s:g} s after it had been stopped", "had not ended its tasks", lambda: False
            )

    def _end(self, worker: str, when: str, otherwise: str, ended: Callable[[], bool]) -> None:
        # One worker has many tasks, and each of them is late when one is stuck.
        if worker in self._asked:
            return
        self._asked.add(worker)
        self._processes.ask(worker, True, partial(self._read, worker, when, otherwise, ended), _DUMP_S)

    def _read(
        self, worker: str, when: str, otherwise: str, ended: Callable[[], bool], readings: ProcessReadings
    ) -> None:
        self._asked.discard(worker)
        if ended() or (pid := self._resources.pid_of(worker)) is None:
            return
        call = _call(readings)
        what = f"was still in {call}" if call else otherwise
        why = f"{what}, {when.format('it' if call else 'that')},"
        text = f"{worker} (process {pid}) {why} and was killed"
        self.killed.append(text)
        log(WARNING, "workers", text)
        self._resources.kill(worker, why)


def _call(readings: ProcessReadings) -> str:
    """Return the task and the innermost call of the thread that runs a task; empty: none is known."""
    for dump in readings.dumps:
        for thread in dump.threads:
            if thread.task:
                return f"{thread.task}, at {thread.frames[0]}" if thread.frames else thread.task
    return ""
