"""Host of workers in the tasks of barrier stages."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from sluiceway.errors import NoResourceAvailableError
from sluiceway.runtime.cluster.worker_host import WorkerHost
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle
from sluiceway.util.overriding import override
from sluiceway_spark.hosted.shared_storage import SharedPlaces
from sluiceway_spark.hosted.task_slots import check_session, wait_for_slots
from sluiceway_spark.hosted.worker_end import ends_in
from sluiceway_spark.hosted.worker_supervisor import Told, task_of
from sluiceway_spark.session.application import STOPPED, Application, fails_of_stop, loss_reason, unless_stopped
from sluiceway_spark.session.configuration import SessionConf, full_text, other_python, said

__all__ = ["SparkHost"]

_GATHER_S: Final = 0.1
_STOP_S: Final = 10.0
_CANCEL_S: Final = 0.5


class SparkHost(WorkerHost):
    """Host that starts workers on the executors of one session.

    Those that are asked for within a moment become one barrier stage, so that all of them start or none does. If
    one is lost, Spark ends the others of its stage, and they count as lost together; the job manager restarts from
    the last checkpoint and asks for others. When the application ends, the job fails with the reason.

    Args:
        session: what to make a session of where none is active.
        workers: how many there will be at a time.
        places: the directories that workers have to see.
        heartbeat_timeout_s: a worker that sends no heartbeat for longer is killed.
        spare: how many task slots are to be left for what the job has Spark compute beside them.
        name: of the pipeline.
    """

    transport = "zmq"

    def __init__(
        self,
        session: SessionConf,
        workers: int,
        places: SharedPlaces,
        heartbeat_timeout_s: float,
        spare: int = 0,
        name: str = "sluiceway",
    ) -> None:
        self._conf = session
        self.name = name
        self._workers = workers
        self._places = places
        self._silent_s = heartbeat_timeout_s
        self.spare = spare
        self._session: Any = None
        self._lock = threading.Lock()
        self._gathered: list[_PlacedWorker] = []
        self._stages: list[_Stage] = []
        self._first = True

    def open(self) -> str:
        """Start Spark, where it does not run yet; the driver's address.

        Raises:
            ConfigurationError, NoResourceAvailableError: this session will never run that many workers.
            ConnectorError: Spark does not start, or is stopped meanwhile.
        """
        self.doing = "starting Spark"
        self._session = self._conf.session(least_cores=self._workers + self.spare, name=self.name)
        with unless_stopped(self._session, f"job {self.name!r}"):
            check_session(self._session, self._workers, self.spare)
            self._places.mark()
            self.pages = str(self._session.sparkContext.uiWebUrl or "")
            conf = self._session.sparkContext.getConf()
        self.listens_at = str(conf.get("spark.driver.bindAddress", ""))
        return str(conf.get("spark.driver.host", "127.0.0.1"))

    def start(self, config: WorkerConfig) -> WorkerHandle:
        """Gather it with others that come in a moment."""
        worker = _PlacedWorker(config)
        with self._lock:
            self._gathered.append(worker)
            if len(self._gathered) == 1:
                timer = threading.Timer(_GATHER_S, self._launch)
                timer.name = "sluiceway-spark-launch"
                timer.daemon = True
                timer.start()
        return worker

    def close(self) -> None:
        """End the stages that are left."""
        with self._lock:
            stages, self._stages = self._stages, []
            workers, self._gathered = self._gathered, []
        for worker in workers:
            worker.end("was not started, as the job has ended", "", killed=True)
        for stage in stages:
            stage.cancel()  # also one whose thread is about to begin, which then finds that it is given up
        until = time.monotonic() + _STOP_S
        # Again and again: what Spark has not begun with, it does not cancel.
        while (left := [stage for stage in stages if stage.is_alive()]) and time.monotonic() < until:
            left[0].join(_CANCEL_S)
            for stage in left:
                stage.cancel()
        self._places.unmark()

    def _launch(self) -> None:
        with self._lock:
            workers, self._gathered = self._gathered, []
            if not workers:
                return
            told = [(asdict(worker.config), self._places.seen, self._silent_s) for worker in workers]
            stage = _Stage(self, self._session, workers, told, first=self._first)
            self._first = False
            # Those that are over have nothing left to end: a job that is restarted for ever must not keep them.
            self._stages = [stage for stage in self._stages if not stage.over] + [stage]
        try:
            stage.start()
        except RuntimeError as error:  # this process may not have another thread
            stage.over = True
            for worker in workers:
                worker.end(f"could not be started: {error}", "", killed=False)


class _Stage(threading.Thread):
    """Barrier stage, and the thread that waits for it.

    Args:
        host: is told what is waited for.
        session: Spark's.
        workers: its tasks.
        told: what each of them is told.
        first: whether none has run before: what is not there then will not be there later.
    """

    def __init__(
        self, host: SparkHost, session: Any, workers: list[_PlacedWorker], told: list[Told], *, first: bool
    ) -> None:
        super().__init__(name="sluiceway-spark-stage", daemon=True)
        self._host = host
        self._session = session
        self._application = Application(session)
        self._members = workers
        self._told = told
        self._first = first
        self._given_up = threading.Event()
        self._tag = f"sluiceway-{uuid.uuid4().hex}"
        self.over = False
        for worker in workers:
            worker.stage = self

    def run(self) -> None:
        """Have Spark run the workers until all have ended, and note the end of each."""
        problem = "the thread of their stage ended without a word of Spark's"
        try:
            self._run()
        except BaseException as error:
            problem = f"the thread of their stage failed: {said(error)}"
        finally:
            # Whatever happened above, nobody may wait for a worker that nobody watches any more.
            for worker in self._members:
                if not worker.ended():
                    worker.end(f"was lost by Spark: {problem}", "", killed=False)
            self.over = True

    def _run(self) -> None:
        count = len(self._told)
        how = ""
        try:
            context = self._session.sparkContext
            self._host.doing = f"waiting for room for {count} workers"
            wait_for_slots(context, count, self._is_pointless, self._host.spare)
            self._host.doing = f"starting {count} workers"
            if not self._is_pointless():
                self._session.addTag(self._tag)
                context.setLocalProperty("spark.job.description", f"sluiceway: {self._host.name}: {count} workers")
                tasks = context.parallelize(self._told, count).barrier()
                tasks.mapPartitions(task_of(sys.path)).collect()
        except NoResourceAvailableError as error:
            for worker in self._members:
                worker.end(f"found no place: {error}", "", killed=False, hopeless=self._first)
            return
        except Exception as error:
            how = STOPPED if fails_of_stop(self._session, error) else full_text(error)
        if not how and self._application.ended:
            how = STOPPED
        told = ends_in(how)
        over = ""
        if how and not told and self._application.ends_after(how, self._given_up.is_set):
            over = self._application.why_ended(how)
        # The end of each member, from what says most: its own report, that of a member that ended the stage, the
        # end of the application, Spark's text.
        for worker in self._members:
            mine = told.get(worker.config.name)
            if mine is not None:
                worker.end(mine.how, mine.said, mine.killed, mine.hopeless)
            elif told:
                first = next(iter(told.values()))
                lost = f"was ended by Spark, as {first.worker} of the same stage {first.how}"
                if first.hopeless:
                    lost = first.how
                worker.end(lost, "", killed=True, hopeless=first.hopeless)
            elif over:
                worker.end(over, "", killed=True, hopeless=True)
            elif how:
                python = other_python(how)
                if python is not None:
                    worker.end(f"cannot start: {python}", "", killed=False, hopeless=True)
                    continue
                by_us = "PythonException" in how  # and not by somebody who kills executors
                worker.end(f"was lost by Spark: {loss_reason(how)}", "", killed=not by_us)
            else:
                worker.end("ended with exit code 0", "", killed=False)

    def _is_pointless(self) -> bool:
        return self._given_up.is_set() or self._application.ended

    def cancel(self) -> None:
        """Cancel the stage."""
        self._given_up.set()
        if self.is_alive():
            with suppress(Exception):  # Spark is gone, and its tasks with it
                self._session.interruptTag(self._tag)


class _PlacedWorker(WorkerHandle):
    """Handle of a worker on an executor, where a supervisor watches it."""

    stage: _Stage | None = None
    reason_within_s = 15.0  # Spark passes it on; YARN's application master reports every 3 s

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._over = threading.Event()
        self._how = "is still running"
        self._said = ""
        self._killed = False
        self._hopeless = False

    def end(self, how: str, what_it_said: str, killed: bool, hopeless: bool = False) -> None:
        """Note how the worker ended. Called in the thread of the stage."""
        self._how, self._said, self._killed, self._hopeless = how, what_it_said, killed, hopeless
        self._over.set()

    @property
    @override
    def pid(self) -> int:
        return 0

    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether Spark has reported its end."""
        return self._over.wait(within_s)

    def kill(self) -> None:
        """Cancel its stage, and with it the other workers of the stage, as Spark runs all tasks or none."""
        if self.stage is not None and not self._over.is_set():
            self.stage.cancel()

    def heard(self) -> bool:
        """Return whether the worker's supervisor listens for heartbeats."""
        return not self._over.is_set()

    def is_at_work(self) -> bool:
        """As for :meth:`heard`."""
        return not self._over.is_set()

    def was_killed(self) -> bool:
        """Return whether it was ended from outside."""
        return self._killed

    def is_hopeless(self) -> bool:
        """Return whether a replacement would end in the same way."""
        return self._hopeless

    def ends_with(self, other: WorkerHandle) -> bool:
        """Return whether both are tasks of one stage."""
        return self is other or (
            self.stage is not None and isinstance(other, _PlacedWorker) and self.stage is other.stage
        )

    def how_it_ended(self) -> str:
        """Return the reason of its end, as reported by its supervisor or by Spark."""
        return self._how

    def what_it_said(self) -> str:
        """Return its output from before it was ready."""
        return self._said
