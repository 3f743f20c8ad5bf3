"""Handlers are registered by the type of the message, one for each."""

from __future__ import annotations

from collections import defaultdict
from pickle import UnpicklingError

import pytest

from sluiceway.errors import SerializationError
from sluiceway.runtime.cluster import standby_supervisor, worker_job, worker_process
from sluiceway.runtime.cluster.dispatcher import Dispatcher
from sluiceway.runtime.cluster.inspector import Inspector
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.job_queries import JobQueries
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.job_submissions import JobSubmissions
from sluiceway.runtime.cluster.process_queries import ProcessQueries
from sluiceway.runtime.cluster.process_requests import ProcessRequests
from sluiceway.runtime.cluster.standbys import Standbys
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.messages.base import Answer
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.payload import Cause, Payload
from sluiceway.runtime.messages.protocol import MESSAGES, decode, encode
from sluiceway.runtime.messages.tasks import AssignSplits, CancelTask, DeclineCheckpoint, StopSource
from sluiceway.runtime.taskmanager.task_manager import TaskManager


class Receiver(Handlers):
    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    @handles(CancelTask)
    def cancel(self, message: CancelTask, peer: str) -> None:
        self.got.append((message.attempt, peer))


class Deputy(Receiver):
    @handles(StopSource)
    def stop(self, message: StopSource, peer: str) -> None:
        self.got.append(("stop", peer))


def test_a_message_comes_to_the_handler_of_its_type() -> None:
    receiver = Receiver()
    assert receiver.dispatch(CancelTask("job", 1, "a"), "peer")
    assert not receiver.dispatch(StopSource("job", 1, "a"), "peer")
    assert receiver.got == [("a", "peer")]
    deputy = Deputy()
    assert deputy.dispatch(CancelTask("job", 1, "b"), "p")
    assert deputy.dispatch(StopSource("job", 1, "b"), "p")
    assert deputy.got == [("b", "p"), ("stop", "p")]


def test_two_handlers_of_one_message_are_refused() -> None:
    with pytest.raises(TypeError, match="Two has two handlers of CancelTask: first and second"):

        class Two(Handlers):
            @handles(CancelTask)
            def first(self, message: CancelTask) -> None: ...

            @handles(CancelTask)
            def second(self, message: CancelTask) -> None: ...


def test_nobody_on_the_way_takes_what_is_meant_for_another() -> None:
    """A worker and the job manager pass on what they have no handler for."""
    for way in (
        (worker_process.WorkerProcess, worker_job.WorkerJob, TaskManager),
        (JobRun, JobMaster),
        (Dispatcher, JobSubmissions, JobQueries, ProcessRequests),
    ):
        takers = defaultdict(list)
        for receiver in way:
            for kind in receiver.handlers:
                takers[kind].append(receiver.__name__)
        assert [names for names in takers.values() if len(names) > 1] == []


def test_every_message_has_a_handler() -> None:
    receivers = (
        Dispatcher,
        Inspector,
        JobManager,
        JobMaster,
        JobQueries,
        JobRun,
        JobSubmissions,
        ProcessQueries,
        ProcessRequests,
        Standbys,
        TaskManager,
        standby_supervisor._Watch,
        worker_process.WorkerProcess,
        worker_job.WorkerJob,
    )
    handled = {kind for receiver in receivers for kind in receiver.handlers}
    assert {kind for kind in MESSAGES if not issubclass(kind, Answer)} == handled


def test_an_object_goes_by_reference_inside_a_process_and_pickled_to_another() -> None:
    splits = [object(), "split"]
    message = AssignSplits("job", 1, "a", Payload(splits))
    assert message.splits.open() is splits
    sent = decode(encode(AssignSplits("job", 1, "a", Payload(["split"]))))
    assert isinstance(sent, AssignSplits)
    assert sent.splits.open() == ["split"]
    with pytest.raises(SerializationError):
        encode(AssignSplits("job", 1, "a", Payload([lambda: message, iter([1]), (n for n in ())])))


def test_nothing_is_unpickled_before_it_is_opened() -> None:
    data = encode(AssignSplits("job", 1, "a", Payload.received(b"no pickle")))
    message = decode(data)
    assert isinstance(message, AssignSplits)
    assert encode(message) == data
    with pytest.raises(UnpicklingError, match="invalid load key"):
        message.splits.open()


def test_an_exception_comes_with_the_traceback_of_its_process() -> None:
    error = ValueError("boom")
    message = DeclineCheckpoint("job", 1, "a", 7, Cause(error))
    assert message.cause.open() is error
    sent = decode(encode(message))
    assert isinstance(sent, DeclineCheckpoint)
    there = sent.cause.open()
    assert repr(there) == "ValueError('boom')"
    assert "in a worker process" in str(there.__cause__)
