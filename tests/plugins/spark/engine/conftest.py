"""A session of Spark for the tests of each module, and a cluster of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from patience import PATIENT_S


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from sluiceway_spark import SessionConf

    conf = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    session = SessionConf.of("local[3]", None, conf).session()
    # Its Python workers are there now.
    list(session.range(3).mapInArrow(lambda batches: batches, "id long").collect())
    yield session
    session.stop()


MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR, OURS = "CoarseGrainedExecutorBackend", "sluiceway.entrypoint.worker"
CONF = """\
spark.master {url}
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.ui.enabled false
spark.driver.memory 512m
spark.executor.memory 512m
spark.scheduler.maxRegisteredResourcesWaitingTime 20s
spark.python.authenticate.socketTimeout 120s
"""


class SparkCluster:
    """A master and two workers of Spark's on this machine, each with one slot, started as its own scripts do."""

    def __init__(self, directory: Path, free_port: Callable[[], int]) -> None:
        import pyspark

        self.directory = directory
        self.url = f"spark://127.0.0.1:{free_port()}"
        (directory / "conf").mkdir()
        (directory / "conf" / "spark-defaults.conf").write_text(CONF.format(url=self.url))
        self.environment = {
            **os.environ,
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }
        self.environment.pop("MASTER", None)
        self.program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._free_port = free_port
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        self._pages = self._free_port()
        log = self._start("master", MASTER, "--port", port, "--webui-port", str(self._pages))
        _until(lambda: b"elected leader" in log.read_bytes(), "master")
        for name in ("one", "two"):
            ports = ("--port", str(self._free_port()), "--webui-port", str(self._free_port()))
            place = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name), self.url)
            log = self._start(name, WORKER, *ports, *place)
            _until(lambda log=log: b"registered with master" in log.read_bytes(), "worker")

    def _start(self, name: str, *arguments: str) -> Path:
        log = self.directory / f"{name}.log"
        first, *others = arguments
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [self.program, first, "--host", "127.0.0.1", *others],
                    env=self.environment,
                    stdout=out,
                    stderr=out,
                    cwd=self.directory,
                    start_new_session=True,
                )
            )
        return log

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _until(lambda: not self.processes(""), "end of all its processes")

    def processes(self, what: str) -> list[int]:
        """Those that run below the cluster's directory, and whose command line holds a text."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    inside = (place / "cwd").readlink().is_relative_to(self.directory)
                    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if inside and what in command:
                    found.append(int(place.name))
        return found

    def kill_application(self) -> None:
        """Kill the application that runs, as the button of the master's page does."""
        pages = f"http://127.0.0.1:{self._pages}/"
        with urlopen(pages) as answer:
            form = re.search(r"<form[^>]*app/kill.*?</form>", answer.read().decode(), re.DOTALL)
        assert form is not None, "no application runs"
        fields = re.findall(r'name="(\w+)"[^>]* value="([^"]*)"', form[0])
        urlopen(f"{pages}app/kill/", data=urlencode(fields).encode()).close()

    def executors(self) -> list[int]:
        return self.processes(EXECUTOR)

    def workers(self) -> list[int]:
        return self.processes(OURS)


def _until(holds: Callable[[], object], what: str, within_s: float = 2 * PATIENT_S) -> None:
    """Wait for something outside that cannot say when it is there.

    Twice as long as elsewhere: before the first micro-batch Spark starts Python processes, one after the other.
    """
    end = time.monotonic() + within_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < end, f"no {what} within {within_s:g} s"
        pause.wait(0.05)


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    given: set[int] = set()

    def free_port() -> int:
        import socket

        while True:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            if port not in given:
                given.add(port)
                return int(port)

    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), free_port)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def until() -> Callable[..., None]:
    return _until
