"""Apache Hadoop YARN on this machine: a ResourceManager and two NodeManagers from Maven Central's jars."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from getpass import getuser
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from patience import PATIENT_S

_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_SPARK = """\
spark.master yarn
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 512m
spark.driver.memoryOverhead 1g
spark.executor.instances 2
spark.executor.cores 1
spark.executor.memory 512m
spark.executor.memoryOverhead 512m
spark.executor.failuresValidityInterval 1h
spark.yarn.am.memory 384m
spark.dynamicAllocation.enabled false
spark.yarn.jars local:{jars}/*
spark.yarn.stagingDir file://{directory}/staging
spark.executorEnv.SPARK_LOCAL_IP 127.0.0.1
spark.yarn.appMasterEnv.SPARK_LOCAL_IP 127.0.0.1
spark.ui.enabled false
spark.scheduler.maxRegisteredResourcesWaitingTime 600s
spark.python.authenticate.socketTimeout 120s
"""
_LOG = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


class Yarn:
    """A ResourceManager and two NodeManagers; ``file:///`` is their file system.

    Attributes:
        environment: of programs that run on it.
        directory: of its files, logs and containers.
        home: directory of Spark's.
    """

    def __init__(self, directory: Path) -> None:
        import pyspark

        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._given: set[int] = set()
        self._pages = self._port()
        self.home = home = Path(pyspark.__file__).parent
        self.environment = {
            **os.environ,
            "HADOOP_CONF_DIR": str(directory / "conf"),
            "YARN_CONF_DIR": str(directory / "conf"),
            "SPARK_CONF_DIR": str(directory / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self.environment.pop("MASTER", None)
        for name in ("conf", "spark", "staging"):
            (directory / name).mkdir()
        spark = _SPARK.format(jars=home / "jars", directory=directory)
        (directory / "spark" / "spark-defaults.conf").write_text(spark)
        (directory / "conf" / "log4j.properties").write_text(_LOG)

    def fetch(self) -> None:
        """Copy the jars from Maven Central or Maven's own store; skip the tests where neither can be reached."""
        maven = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        pom = str(Path(__file__).with_name("pom.xml"))
        options = [f"-DoutputDirectory={self.directory / 'lib'}", "-DincludeScope=runtime"]
        done = subprocess.run(["mvn", "-q", "-B", "-f", pom, maven, *options], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"Maven does not fetch Apache Hadoop YARN: {(done.stdout + done.stderr).strip()[:300]}")

    def start(self) -> None:
        """Start the daemons, and wait until both nodes have registered."""
        ports = {name: self._port() for name in ("scheduler", "resource-tracker", "", "admin")}
        addresses = {
            f"yarn.resourcemanager.{name + '.' * bool(name)}address": f"127.0.0.1:{port}"
            for name, port in ports.items()
        }
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.directory / "tmp")})
        self._write(
            "yarn-site",
            {
                **addresses,
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.resourcemanager.webapp.address": f"127.0.0.1:{self._pages}",
                "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler"
                ".capacity.CapacityScheduler",
                "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.resource.memory-mb": "6144",
                "yarn.nodemanager.resource.cpu-vcores": "4",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.resource.memory.enforced": "false",  # else cgroups are to end what is too large
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
                "yarn.timeline-service.enabled": "false",
            },
        )
        self._write(
            "capacity-scheduler",
            {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
            },
        )
        self._daemon("rm", "384m", _MANAGER)
        for name in ("nm1", "nm2"):
            place = self.directory / name
            settings = {
                "yarn.nodemanager.address": f"127.0.0.1:{self._port()}",
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{self._port()}",
                "yarn.nodemanager.webapp.address": f"127.0.0.1:{self._port()}",
                "yarn.nodemanager.local-dirs": str(place / "local"),
                "yarn.nodemanager.log-dirs": str(place / "logs"),
            }
            self._daemon(name, "256m", _NODE, *(word for k, v in settings.items() for word in ("-D", f"{k}={v}")))
        self.until(lambda: self._ask("metrics")["clusterMetrics"]["activeNodes"] == 2, "two nodes")

    def stop(self) -> None:
        """End all applications and daemons."""
        for application in self.applications():
            self.kill(application)
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)  # a NodeManager that has run something takes twice as long
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.until(lambda: not self.processes(""), "end of all its processes")

    def applications(self) -> list[str]:
        """Return the ids of the applications that run or wait."""
        try:
            found = self._ask("apps?states=NEW,SUBMITTED,ACCEPTED,RUNNING")["apps"] or {}
        except OSError:  # it has not come up
            return []
        return [app["id"] for app in found.get("app", [])]

    def kill(self, application: str) -> None:
        """Kill an application, as ``yarn application -kill`` does."""
        url = f"http://127.0.0.1:{self._pages}/ws/v1/cluster/apps/{application}/state?user.name={getuser()}"
        headers = {"Content-Type": "application/json"}
        urlopen(Request(url, b'{"state": "KILLED"}', headers, method="PUT")).close()

    def processes(self, what: str) -> list[int]:
        """Return the processes in its containers whose command line holds a text."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    inside = (place / "cwd").readlink().is_relative_to(self.directory)
                    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if inside and what in command and not command.startswith(("bash", "/bin/bash")):
                    found.append(int(place.name))
        return sorted(found)

    @staticmethod
    def until(holds: Any, what: str, within_s: float = 2 * PATIENT_S) -> None:
        """Wait for something outside that cannot say when it is there."""
        end, pause = time.monotonic() + within_s, threading.Event()
        while True:
            try:
                if holds():
                    return
            except OSError:  # not listening yet
                pass
            assert time.monotonic() < end, f"no {what} within {within_s:g} s"
            pause.wait(0.1)

    def _daemon(self, name: str, heap: str, main: str, *arguments: str) -> None:
        classes = f"{self.directory}/conf:{self.directory}/lib/*"
        java = ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*java, "-Djava.net.preferIPv4Stack=true", "-cp", classes, main, *arguments],
                    env=self.environment,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _ask(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._pages}/ws/v1/cluster/{path}") as answer:
            return json.load(answer)

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        lines = (f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in properties.items())
        text = f"<configuration>\n{''.join(lines)}</configuration>\n"
        (self.directory / "conf" / f"{name}.xml").write_text(text)

    def _port(self) -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in self._given:
                self._given.add(port)
                return port


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}, by which Apache Hadoop YARN is fetched and run")
    cluster = Yarn(tmp_path_factory.mktemp("yarn"))
    cluster.fetch()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
