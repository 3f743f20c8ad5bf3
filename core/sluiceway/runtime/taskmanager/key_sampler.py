"""Sampler of the keys that tasks receive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from sluiceway.clock import Clock
from sluiceway.elements import Batch
from sluiceway.functions import KeySelector
from sluiceway.monitoring.key_samples import HotKey, KeySample
from sluiceway.operators import Operator
from sluiceway.operators.windows.slice_types import Partial
from sluiceway.record_errors import shown
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.task.task import Task
from sluiceway.runtime.taskmanager.frequent_keys import FrequentKeys

__all__ = ["sample_keys"]

# Keys of a sample, characters of each, and samples of one task at a time.
_TOLD: Final = 20
_LONGEST_KEY: Final = 200
_AT_ONCE: Final = 4

KeyOf = Callable[[Any], Any]


def sample_keys(
    loop: TaskletLoop,
    tasks: Iterable[Task],
    vertices: Collection[int],
    seconds: float,
    worker: str,
    clock: Clock,
    done: Callable[[list[KeySample] | None, str], None],
) -> None:
    """Count the keys of all records that keyed tasks receive. In the loop's thread.

    No check is added per record while nobody samples: the receiver of a task's batches is replaced for that
    time, which costs 0.2 microseconds or so for each record.

    Args:
        loop: runs the tasks.
        tasks: of the job in this process.
        vertices: ids of vertices; empty: all.
        seconds: time for which to count.
        worker: name of this process.
        clock: the machine's.
        done: called in the loop's thread, with a sample of each task; or with a problem.
    """
    counts: list[_Count] = []
    for task in tasks:
        vertex = task.deployment.vertex.id
        if task.ended or not (vertex in vertices or not vertices):
            continue
        head = task.operators[0] if task.operators else None
        if head is None or (keys := _keys_of(task, head)) is None:
            continue
        if task.watchers >= _AT_ONCE:
            for one in counts:
                one.end()
            done(None, f"{_AT_ONCE} counts of the keys of {task.deployment.vertex.name!r} are under way already")
            return
        counts.append(_Count(task, head, keys))
    began = clock.monotonic()

    def end() -> None:
        lasted = clock.monotonic() - began
        done([count.sample(worker, lasted) for count in counts], "")

    loop.at(began + seconds, end)


def _keys_of(task: Task, head: Operator) -> tuple[KeyOf, ...] | None:
    """Return the functions from a record to its key, one for each input; None: an input is not keyed."""
    keys = head.context.node.step.keys
    if not keys or any(key is None for key in keys):
        # A step without keyed state, such as a map, has the key of the exchange before it.
        by_port = {i.port: i.partitioner.key for i in task.deployment.inputs if i.partitioner.name == "hash"}
        keys = tuple(by_port.get(port) for port in range(len(head.receivers())))
    if any(key is None for key in keys):
        return None
    return tuple(key.get_key if isinstance(key, KeySelector) else key for key in keys)


class _Count:
    """Counter of the keys of one task until :meth:`end`."""

    def __init__(self, task: Task, head: Operator, keys: tuple[KeyOf, ...]) -> None:
        self._task = task
        self._step = head.step_name
        self._key_of = keys
        self._frequent = FrequentKeys()
        self.end = task.watch(self._look)

    def _look(self, batch: Batch[Any], port: int) -> None:
        # A key that cannot be computed or counted fails the step itself, which names the record.
        with suppress(Exception):
            self._frequent.add(self._keys(batch, port) if batch.keys is None else batch.keys)

    def _keys(self, batch: Batch[Any], port: int) -> list[Any]:
        key_of = self._key_of[port]
        # A combined record has its key; the keys of others are computed.
        return [value.key if type(value) is Partial else key_of(value) for value in batch.values]

    def sample(self, worker: str, seconds: float) -> KeySample:
        """Stop counting, and return the sample."""
        self.end()
        deployment, frequent = self._task.deployment, self._frequent
        keys = [HotKey(shown(key, _LONGEST_KEY), count) for key, count in frequent.top(_TOLD)]
        return KeySample(
            worker,
            deployment.vertex.id,
            deployment.subtask,
            self._step,
            seconds,
            frequent.records,
            frequent.error,
            keys,
        )
