"""Where workers find their places on Spark, and what is said where they find none: without Spark itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from patience import PATIENT_S

from sluiceway.errors import ConfigurationError, NoResourceAvailableError
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway_spark.hosted import task_slots, worker_supervisor
from sluiceway_spark.hosted.shared_storage import SharedPlaces, unseen
from sluiceway_spark.hosted.task_slots import check_session, wait_for_slots
from sluiceway_spark.hosted.worker_end import WorkerEnd, ends_in
from sluiceway_spark.hosted.worker_host import SparkHost
from sluiceway_spark.hosted.worker_supervisor import WorkerEndedError, supervise, task_of
from sluiceway_spark.session import configuration, context
from sluiceway_spark.session.application import loss_reason
from sluiceway_spark.session.configuration import SessionConf, configured, configured_master
from sluiceway_spark.session.context import tasks_at_a_time

# ---- shared directories ------------------------------------------------------------------------------------


def test_workers_see_what_the_job_manager_sees(tmp_path: Path) -> None:
    began = tmp_path / "before"
    began.mkdir()
    places = SharedPlaces(str(tmp_path / "kept"), str(began))
    places.mark()
    assert len(places.seen) == 2
    assert unseen(places.seen) is None
    places.unmark()
    assert list((tmp_path / "kept").iterdir()) == []
    assert unseen(places.seen) == str(tmp_path / "kept")


def test_a_directory_of_the_same_name_is_not_the_same(tmp_path: Path) -> None:
    places = SharedPlaces(f"file://{tmp_path}/kept", None)
    places.mark()
    for file in (tmp_path / "kept").iterdir():
        file.unlink()  # as on another machine
    assert unseen(places.seen) == str(tmp_path / "kept")


def test_places_that_are_no_directories_are_everybodys() -> None:
    places = SharedPlaces("s3://bucket/kept", "hdfs://there/before")
    places.mark()
    assert places.seen == []


def test_marks_of_drivers_that_were_killed_go(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".sluiceway-seen-1", ".sluiceway-seen-2", "old"))
    for file in (old, young, other):
        file.touch()
    for file in (old, other):
        os.utime(file, (0, 0))
    places = SharedPlaces(str(tmp_path), None)
    places.mark()
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def told(error: BaseException) -> WorkerEnd:
    [end] = ends_in(str(error)).values()
    return end


def test_a_worker_that_does_not_see_the_checkpoints_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(WorkerEndedError) as caught:
        supervise({"name": "worker-1"}, [str(tmp_path / "kept" / ".sluiceway-seen-1")], 1.0)
    said = told(caught.value)
    assert said.hopeless
    assert f"{tmp_path}/kept is not there what it is for the job manager" in said.how
    assert "shared storage, or a URL as of S3 or HDFS" in said.how


def test_a_python_without_sluiceway_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of([])
    monkeypatch.setitem(sys.modules, "sluiceway_spark.hosted.worker_supervisor", None)
    with pytest.raises(RuntimeError) as caught:
        list(task([({"name": "worker-1"}, [], 1.0)]))
    said = told(caught.value)
    assert said.hopeless
    assert f"cannot start: {sys.executable}, the Python" in said.how
    assert "install Sluiceway there, and have PYSPARK_PYTHON name that Python" in said.how


@pytest.mark.parametrize("said", ["", 'Traceback } \n {"worker": "x"} ', "a" * 16_384, "\0 ä \\ '"])
def test_the_end_of_a_worker_arrives_whatever_it_said(said: str) -> None:
    ends = [WorkerEnd(f"worker-{n}", "ended with exit code 1 } ", said, killed=n == 1) for n in (1, 2)]
    text = "\n".join(f"Caused by: RuntimeError: {end.encoded()}\n\tat java {{}}." for end in ends)
    assert ends_in(text) == {end.worker: end for end in ends}


def test_what_is_no_end_of_a_worker_is_passed_over() -> None:
    whole = WorkerEnd("worker-1", "was killed").encoded()
    assert ends_in(f"{whole[:40]}. sluiceway-worker-ended eyJhIjogMX0=. sluiceway-worker-ended QQ. {whole}") == {
        "worker-1": WorkerEnd("worker-1", "was killed")
    }


class _JvmIsGoneError(Exception):
    """As py4j's, which asks the JVM for its text."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


@pytest.mark.parametrize(
    ("fails_with", "says"),
    [(_JvmIsGoneError(), "Spark's JVM does not say more"), (ValueError("odd"), "odd"), (SystemExit("3"), "3")],
)
def test_workers_of_a_stage_whose_thread_fails_are_told_of(fails_with: BaseException, says: str) -> None:
    class Session:
        @property
        def sparkContext(self) -> Any:
            raise fails_with

    host = SparkHost(SessionConf(), 2, SharedPlaces(None, None), 1.0)
    host._session = Session()
    workers = [host.start(config(f"worker-{n}")) for n in (1, 2)]
    assert all(worker.ended(PATIENT_S) for worker in workers)
    for worker in workers:
        assert re.match("(was lost by Spark|ended with Spark's application): ", worker.how_it_ended())
        assert says in worker.how_it_ended()
    host.close()


def config(name: str) -> WorkerConfig:
    return WorkerConfig(name, "tcp://127.0.0.1:1", "", "00", 1, "zmq", 1, 1, [])


def test_a_worker_imports_from_where_its_executor_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[WorkerConfig, Any]] = []

    def start(config: WorkerConfig, path: Any) -> Any:
        started.append((config, path))
        raise ConnectionAbortedError

    monkeypatch.setattr(worker_supervisor, "start_worker", start)
    monkeypatch.setattr(sys, "path", ["", "/userFiles/shipped.zip", *sys.path])  # as of --py-files
    monkeypatch.chdir(tmp_path)
    (tmp_path / "driver").mkdir()
    drivers = [str(tmp_path / "driver"), "/not/on/this/machine"]
    with pytest.raises(ConnectionAbortedError):
        supervise({**asdict(config("worker-1")), "path": drivers}, [], 1.0)
    [(told_worker, path)] = started
    assert told_worker.path == path
    library, installed = Path(os.__file__).parent, Path(pytest.__file__).parents[1]
    order = [str(library), drivers[0], str(tmp_path), "/userFiles/shipped.zip", str(installed)]
    assert [entry for entry in path if entry in order] == order
    assert not {"", drivers[1]} & set(path)


SUPERVISOR = """
import os, signal
from dataclasses import asdict
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway_spark.hosted import worker_supervisor

def start(config, path):
    assert os.listdir(os.path.dirname(config.directory)) == [os.path.basename(config.directory)]
    os.kill(os.getpid(), signal.SIGHUP)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as Spark's daemon leaves it
worker_supervisor.start_worker = start
worker_supervisor.supervise(
    asdict(WorkerConfig("worker-1", "tcp://127.0.0.1:1", "", "00", 1, "zmq", 1, 1, [])), [], 1.0
)
"""


def test_a_supervisor_that_ends_with_its_executor_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", SUPERVISOR], env=environment, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 128 + signal.SIGHUP, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_is_missing_where_a_worker_starts_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    with pytest.raises(WorkerEndedError) as caught:
        supervise(asdict(config("worker-1")), [], 60.0)
    said = told(caught.value)
    assert said.hopeless
    assert f"cannot start: {sys.executable}, the Python 3." in said.how
    assert "has no module '" in said.how
    assert "install it there, or ship it with --py-files" in said.how


# ---- what Spark says of losses -------------------------------------------------------------------------------

FAILED = "An error occurred while calling z:PythonRDD.collectAndServe.\n: org.apache.spark.SparkException: "
BARRIER = (
    "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure "
    "reason: Stage failed because barrier task ResultTask(0, 0) finished unsuccessfully.\n"
)
MEMORY = (
    "Container killed by YARN for exceeding physical memory limits. 1.0 GB of 1 GB physical memory used. "
    "Consider boosting spark.executor.memoryOverhead."
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{BARRIER}ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: {MEMORY}",
         f"executor 4: {MEMORY}"),
        (f"{BARRIER}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
         "Python worker exited unexpectedly (crashed)"),
        ("Job aborted due to stage failure: Master removed our application: KILLED\nDriver stacktrace:",
         "Master removed our application: KILLED"),
        ("Job 1 cancelled as the context was shut down", "Job 1 cancelled as the context was shut down"),
        ("a" * 9000, "a" * 1000),
    ],
)  # fmt: skip
def test_the_reason_of_a_loss_is_what_spark_says_without_its_stack(text: str, reason: str) -> None:
    assert loss_reason(
        f"{FAILED}{text}\n\tat org.apache.spark.scheduler.DAGScheduler.run(DAGScheduler.scala:1)"
    ) == (reason)


def test_members_of_a_stage_end_together_and_the_ended_application_is_final() -> None:
    class Ended(Context):
        _jvm = None

        def __init__(self) -> None:
            super().__init__("spark://there:7077", 2)
            self.applicationId = "app-1"
            self._jsc.sc().isStopped = lambda: True

    host = SparkHost(SessionConf(), 2, SharedPlaces(None, None), 1.0)
    host._session = SimpleNamespace(sparkContext=Ended())
    one, two = (host.start(config(f"worker-{n}")) for n in (1, 2))
    assert one.ended(PATIENT_S)
    assert two.ended(PATIENT_S)
    assert one.how_it_ended() == "ended with Spark's application app-1: Spark's context was stopped"
    assert one.is_hopeless()
    assert one.ends_with(two)
    other = host.start(config("worker-3"))
    assert other.ended(PATIENT_S)
    assert not other.ends_with(one)
    host.close()


# ---- slots -------------------------------------------------------------------------------------------------


class Context:
    """As much of a Spark context as is asked."""

    def __init__(self, master: str, *slots: int, waits_ms: int = 0, dynamic: str = "false") -> None:
        self.master = master
        self.applicationId = uuid4().hex
        self.looks = 0
        self._slots = list(slots)
        self._dynamic = dynamic
        manager = SimpleNamespace(defaultResourceProfile=lambda: None)
        conf = SimpleNamespace(getTimeAsMs=lambda name, default: waits_ms)
        scala = SimpleNamespace(
            maxNumConcurrentTasks=lambda profile: self._now(),
            resourceProfileManager=lambda: manager,
            conf=lambda: conf,
        )
        self._jsc = SimpleNamespace(sc=lambda: scala)

    def _now(self) -> int:
        self.looks += 1
        return self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]

    def getConf(self) -> Any:
        return {"spark.dynamicAllocation.enabled": self._dynamic}

    @property
    def defaultParallelism(self) -> int:
        return max(self._slots[0], 2)  # as Spark has it


def session(*arguments: Any, **options: Any) -> Any:
    return SimpleNamespace(sparkContext=Context(*arguments, **options))


def test_too_few_slots_of_one_machine_are_told_at_once() -> None:
    with pytest.raises(
        NoResourceAvailableError,
        match=r"^3 workers take 3 task slots of Spark's at a time, and local\[2\] has 2: ask for fewer with "
        r"--workers, or give Spark a larger N in local\[N\]$",
    ):
        check_session(session("local[2]", 2), 3)
    with pytest.raises(NoResourceAvailableError, match="what SparkSource reads takes 1 beside them, and local"):
        check_session(session("local[2]", 2), 2, spare=1)
    check_session(session("local[2]", 2), 2)
    check_session(session("spark://there:7077", 0), 3)  # they may come
    check_session(session("local-cluster[2,1,1024]", 0), 3)


def test_executors_that_come_and_go_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no barrier stages with spark.dynamicAllocation.enabled=true: "):
        check_session(session("yarn", 4, dynamic="true"), 2)


def test_a_session_of_connect_is_refused() -> None:
    class Remote:
        @property
        def sparkContext(self) -> Any:
            raise RuntimeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    with pytest.raises(ConfigurationError, match="one of this program is of Spark Connect: run the program by "):
        check_session(Remote(), 2)


def test_workers_wait_for_executors_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_slots, "_LOOK_S", 0.001)
    wait_for_slots(Context("yarn", 0, 1, 2, waits_ms=60_000), 2, lambda: False)


def test_they_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_slots, "_LOOK_S", 0.001)
    for master, settings in (
        ("yarn", "spark.executor.instances, spark.executor.cores"),
        ("spark://there:7077", "spark.executor.instances, spark.executor.cores, spark.cores.max"),
    ):
        with pytest.raises(
            NoResourceAvailableError,
            match=rf"and {master} has 1 after 0 s: .* larger executors \({settings}\), or more time to start them "
            r"\(spark\.scheduler\.maxRegisteredResourcesWaitingTime\)$",
        ):
            wait_for_slots(Context(master, 1, waits_ms=1), 2, lambda: False)
    wait_for_slots(Context("yarn", 1, waits_ms=60_000), 2, lambda: True)  # nobody wants them any more


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_LOOK_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_tasks_are_counted_when_executors_are_there() -> None:
    told = session("spark://there:7077", 0, 0, 3, 6, waits_ms=600_000)
    assert tasks_at_a_time(told, 1) == 6
    looks = told.sparkContext.looks
    assert tasks_at_a_time(told, 1) == 6
    assert told.sparkContext.looks == looks  # they have been waited for


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("told", "given_up"),
    [
        (session("local[4]", 0, 4, waits_ms=600_000), False),
        (session("yarn", 0, 4, waits_ms=600_000, dynamic="true"), False),  # they come with the tasks
        (session("yarn", 0, waits_ms=600_000), True),
    ],
    ids=["local", "dynamic", "given up"],
)
def test_executors_that_do_not_come_are_not_waited_for(told: Any, given_up: bool) -> None:
    assert tasks_at_a_time(told, 1, lambda: given_up) == 2


@pytest.mark.usefixtures("at_once")
def test_a_number_of_tasks_that_is_a_guess_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert tasks_at_a_time(session("spark://there:7077", 0, waits_ms=1), 1) == 2
    (record,) = caplog.records
    assert record.getMessage() == (
        "no executor of Spark's has registered within 0.001 s "
        "(spark.scheduler.maxRegisteredResourcesWaitingTime): counting on 2 tasks at a time. Say how many with "
        "--parallelism, or parallelism= in a program"
    )


# ---- the master --------------------------------------------------------------------------------------------


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that says nothing of Spark, and the directory where it may say something."""
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    where = ModuleSpec("pyspark", None, origin=str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setattr(configuration, "find_spec", lambda name: where)
    return tmp_path


def test_nobody_names_a_master(plain: Path) -> None:
    assert configured_master() is None
    (plain / "spark-defaults.conf").write_text("# spark.master yarn\nspark.masterful no\n")
    assert configured_master() is None


@pytest.mark.parametrize("line", ["spark.master yarn", "spark.master=yarn", "  spark.master :  yarn  "])
def test_sparks_own_file_names_it(plain: Path, line: str) -> None:
    (plain / "spark-defaults.conf").write_text(f"spark.ui.enabled false\n{line}\n")
    assert configured_master() == "yarn"


@pytest.mark.parametrize("said", ["--master yarn", "--name x --conf spark.master=yarn pyspark-shell"])
def test_arguments_go_before_the_file(plain: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    (plain / "spark-defaults.conf").write_text("spark.master local[7]\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", said)
    assert configured_master() == "yarn"
    monkeypatch.setenv("MASTER", "spark://there:7077")
    assert configured_master() == "spark://there:7077"


@pytest.mark.parametrize("said", ["--name mine pyspark-shell", "--conf spark.app.name=mine pyspark-shell"])
def test_the_name_of_the_application_is_configured(
    plain: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    assert configured("spark.app.name", "--name") is None
    (plain / "spark-defaults.conf").write_text("spark.app.names no\nspark.app.name my own name \n")
    assert configured("spark.app.name", "--name") == "my own name"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", said)
    assert configured("spark.app.name", "--name") == "mine"


def test_spark_does_not_take_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGINT)
    with configuration._own_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGINT) is before
