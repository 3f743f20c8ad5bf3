"""Queries of the live state of a key, from the job manager through the worker to the task and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from sluiceway.errors import ConfigurationError, ConnectorError, SluicewayError, choose
from sluiceway.graph import ExecutionState, JobGraph, JobVertex
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.keyed_state.queries import key_candidates, key_of_json
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages.clients import AskState
from sluiceway.runtime.messages.error_kinds import error_of
from sluiceway.runtime.messages.workers import FoundState, ReadState, StateRead, StateValue
from sluiceway.runtime.task.task import Task
from sluiceway.runtime.taskmanager.task_manager import TaskManager
from sluiceway.serializers import KEY_SERIALIZER
from sluiceway.steps.keyed import key_type
from sluiceway.streamgraph import StreamNode

__all__ = ["StateReads", "read_state"]

Done = Callable[[FoundState | SluicewayError], None]


# ---- in a worker ---------------------------------------------------------------------------------------------


def read_state(tasks: TaskManager, message: ReadState, done: Done) -> None:
    """Read state in its task, between two batches.

    Args:
        tasks: tasks of the job on this worker.
        message: the query.
        done: called with the answer or an error; not called if the task ends first.
    """

    def look(task: Task) -> None:
        try:
            found = _look(task, message)
        except SluicewayError as error:
            done(error)
        except Exception as error:  # also of serializing a value: a query must not fail the task
            done(SluicewayError(f"{type(error).__name__}: {error}"))
        else:
            done(found)

    if not tasks.ask(message.attempt, look):
        done(ConnectorError(f"the subtask of step {message.uid!r} that has the key has just ended"))


def _look(task: Task, message: ReadState) -> FoundState:
    operator = next(o for o in task.operators if o.context.node.uid == message.uid)
    assert isinstance(operator, KeyedOperator)
    keys = [KEY_SERIALIZER.loads(key) for key in message.keys]
    namespace = key_of_json(message.namespace) if message.namespace else None
    meta, found = operator.backend.look(
        message.uid, message.state, message.text, keys, namespace, operator.own_tables
    )
    return FoundState(
        name=meta.name,
        kind=meta.kind.value,
        serializer=meta.serializer,
        version=meta.version,
        type=meta.type_name,
        expires=meta.expires,
        declared=meta.declared,
        values=[StateValue(held.namespace, held.key, held.values) for held in found],
    )


# ---- in the job manager --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    done: Done
    deadline: Scheduled
    left: int


class StateReads:
    """Open queries of the state of one job. In the job manager's loop.

    Args:
        job: id of the job.
        epoch: epoch of the leader of the job.
        master: job master of the job.
        loop: loop of the job manager.
    """

    def __init__(self, job: str, epoch: int, master: JobMaster, loop: TaskletLoop) -> None:
        self._job = job
        self._epoch = epoch
        self._master = master
        self._loop = loop
        self._numbers = count(1)
        self._open: dict[int, _Read] = {}

    def ask(self, message: AskState, done: Done) -> None:
        """Query the subtask that has the key; ``done`` is called once, within ``message.within_s`` seconds."""
        try:
            attempts = self._attempts(message)
        except SluicewayError as error:
            done(error)
            return
        except ValueError as error:
            done(ConfigurationError(str(error)))
            return
        # By number: a worker may answer when the deadline has passed and the entry is gone.
        number = next(self._numbers)
        late = ConnectorError(
            f"step {message.uid!r} has not answered within {message.within_s:g} s: it is in a call, or starting"
        )
        deadline = self._loop.post(lambda: self._end(number, late), message.within_s)
        self._open[number] = _Read(done, deadline, len(attempts))
        for attempt, keys in attempts.items():
            self._master.send(
                ReadState(
                    self._job,
                    self._epoch,
                    attempt,
                    number,
                    message.uid,
                    message.state,
                    message.key,
                    list(map(KEY_SERIALIZER.dumps, keys)),
                    message.namespace,
                )
            )

    def answered(self, message: StateRead) -> None:
        """Process the answer of a task: the first one with state is the result, else the last problem."""
        read = self._open.get(message.number)
        if read is None:
            return
        # Where the text may be two keys, two tasks are asked, and one of them has nothing.
        read.left -= 1
        if message.found is not None or not read.left:
            self._end(message.number, message.found or error_of(message.kind, message.problem))

    def _end(self, number: int, found: FoundState | SluicewayError) -> None:
        read = self._open.pop(number, None)
        if read is not None:
            read.deadline.cancel()
            read.done(found)

    def _attempts(self, message: AskState) -> dict[str, list[Any]]:
        """Return by attempt the keys to look up: one, or two if the text may be JSON or a string."""
        # The master's graph, not one of the start: a rescale gives keys to other subtasks.
        vertex, node = _step(self._master.graph, message.uid)
        if message.namespace:
            key_of_json(message.namespace)
        found: dict[str, list[Any]] = {}
        for key in key_candidates(message.key, key_type(getattr(node.step, "key", None))):
            group = key_group(key, node.max_parallelism)
            subtask = subtask_for_key_group(group, vertex.parallelism, node.max_parallelism)
            execution = self._master.executions.subtask(vertex.id, subtask).current
            if execution.state is not ExecutionState.RUNNING:
                raise ConnectorError(
                    f"subtask {subtask + 1} of step {message.uid!r} is {execution.state.value.lower()}: its state "
                    "can be read live while it runs, else from the last checkpoint"
                )
            found.setdefault(execution.attempt_id, []).append(key)
        return found


def _step(graph: JobGraph, uid: str) -> tuple[JobVertex, StreamNode]:
    steps = {node.uid: (vertex, node) for vertex in graph.vertices for node in vertex.nodes}
    keyed = {name for name, (_, node) in steps.items() if getattr(node.step, "key", None) is not None}
    if uid not in keyed:
        raise choose("step with the uid", uid, keyed, "and keyed state")
    return steps[uid]
