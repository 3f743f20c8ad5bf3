"""A real Apache Kafka on 127.0.0.1 for tests: brokers of their own, from the jars of Maven Central.

Needs Java 17 or newer, and Maven once, to fetch the jars. With pytest, use the fixture ``kafka_broker`` of
``sluiceway.testing.pytest_plugin``; it skips a test with the reason where there is no broker to be had::

    @pytest.mark.kafka
    def test_orders(kafka_broker):
        run_pipeline(kafka_broker.bootstrap_servers)
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ["KAFKA_VERSION", "KafkaCluster", "KafkaUnavailableError"]

KAFKA_VERSION: Final = "4.4.0"
"""The version of Apache Kafka that is fetched."""

_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sluiceway</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""

_OLDEST_JAVA: Final = 17
_FETCH_S: Final = 600


class KafkaUnavailableError(Exception):
    """No broker can be started on this machine; the message says why, and what to install."""


class KafkaCluster:
    """Brokers on ports of their own, each with a KRaft controller, and a directory that goes with them.

    A context manager: entering it fetches the jars where they are not there, starts the brokers and waits until
    they answer; leaving it kills them. On Linux brokers die with the thread that has started them.

    Args:
        brokers: how many.
        root: where their files go; None: a temporary directory, removed at the end.
        heap: the most memory of each broker, as ``-Xmx`` takes it.
        features: levels of features such as ``transaction.version``, where they are to differ from the newest.
        properties: properties of the brokers, such as ``transaction.max.timeout.ms``.

    Attributes:
        bootstrap_servers: ``127.0.0.1:port`` of each broker, separated by commas.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        root: str | os.PathLike[str] | None = None,
        heap: str = "256m",
        features: Mapping[str, int] | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self._count = brokers
        self._heap = heap
        self._features = dict(features or {})
        self._properties = dict(properties or {})
        self._own = root is None
        self._given_root = root
        self._root = Path()
        self._cluster_id = "-"
        while self._cluster_id.startswith("-"):  # the tool takes it for an option
            self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._ports: list[int] = []
        self._controllers: list[int] = []
        self._jars = Path()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap_servers = ""

    def __enter__(self) -> KafkaCluster:
        self._jars = _fetched_jars()
        self._root = Path(tempfile.mkdtemp(prefix="kafka-") if self._given_root is None else self._given_root)
        ports = _free_ports(2 * self._count)
        self._ports, self._controllers = ports[: self._count], ports[self._count :]
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        try:
            for broker in range(1, self._count + 1):
                self._format(broker)
            for broker in range(1, self._count + 1):
                self.start(broker)
            self.wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def start(self, broker: int = 1) -> None:
        """Start a broker that was killed or stopped, with the data that it has. Brokers count from 1."""
        properties = self._write(broker)
        with open(self._directory(broker) / "server.log", "ab") as log:
            self._processes[broker] = subprocess.Popen(
                self._java("kafka.Kafka", str(properties), heap=self._heap),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 120) -> None:
        """Wait until each running broker answers and knows the others.

        Raises:
            RuntimeError: a broker has ended; with the end of its log.
            TimeoutError: a broker does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        for broker, process in self._processes.items():
            while True:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"broker {broker} has ended with {process.returncode}:\n{self.log(broker)[-3000:]}"
                    )
                with contextlib.suppress(OSError):
                    if _known_brokers(self._ports[broker - 1]) >= len(self._processes):
                        break
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"broker {broker} is not ready in {timeout_s} s:\n{self.log(broker)[-3000:]}"
                    )
                time.sleep(0.05)

    def kill(self, broker: int = 1) -> None:
        """Kill a broker (SIGKILL)."""
        process = self._processes.pop(broker)
        process.kill()
        process.wait(30)

    def stop(self, broker: int = 1) -> None:
        """End a broker in good order (SIGTERM)."""
        process = self._processes.pop(broker)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def log(self, broker: int = 1) -> str:
        """Return the log of a broker."""
        return (self._directory(broker) / "server.log").read_text(errors="replace")

    # ---- inside ----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        for broker in list(self._processes):
            self.kill(broker)
        if self._own:
            shutil.rmtree(self._root, ignore_errors=True)

    def _directory(self, broker: int) -> Path:
        return self._root / f"broker{broker}"

    def _write(self, broker: int) -> Path:
        replicas = min(3, self._count)
        least = 1 if replicas < 3 else 2
        port, controller = self._ports[broker - 1], self._controllers[broker - 1]
        voters = ",".join(f"{number}@127.0.0.1:{each}" for number, each in enumerate(self._controllers, 1))
        properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._directory(broker) / "data",
            "default.replication.factor": replicas,
            "min.insync.replicas": least,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": least,
            "transaction.state.log.num.partitions": 4,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": least,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
            **self._properties,
        }
        directory = self._directory(broker)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return file

    def _format(self, broker: int) -> None:
        features = [word for name, level in self._features.items() for word in ("--feature", f"{name}={level}")]
        arguments = ["format", "-t", self._cluster_id, "-c", str(self._write(broker)), *features]
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", *arguments),
            timeout=120,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the storage of broker {broker} cannot be formatted:\n{done.stdout[-2000:]}")

    def _java(self, main: str, *arguments: str, heap: str = "64m") -> Sequence[str]:
        # A test that is killed leaves no broker behind (Linux, util-linux).
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return [
            *guard,
            "java",
            f"-Xmx{heap}",
            "-Xms32m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp",
            f"{self._jars}/*",
            main,
            *arguments,
        ]


def _fetched_jars() -> Path:
    """Return the directory of the jars; fetch them if need be."""
    _check_java()
    given = os.environ.get("SLUICEWAY_KAFKA_LIBS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = Path(given) if given else cache / "sluiceway" / f"kafka-{KAFKA_VERSION}"
    if any(jars.glob("kafka_2.13-*.jar")):
        return jars
    if shutil.which("mvn") is None:
        raise KafkaUnavailableError(
            f"there are no jars of Kafka in {jars}, and Maven, which fetches them, is not installed (Debian: "
            "apt-get install maven)"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as temporary:
        (Path(temporary) / "pom.xml").write_text(_POM)
        fetched = Path(temporary) / "jars"
        done = subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                f"{temporary}/pom.xml",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={fetched}",
            ],
            timeout=_FETCH_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise KafkaUnavailableError(f"Maven cannot fetch Kafka {KAFKA_VERSION}:\n{done.stdout[-2000:]}")
        with contextlib.suppress(OSError):  # another process was faster
            fetched.rename(jars)
    return jars


def _check_java() -> None:
    try:
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except FileNotFoundError:
        told = ""
    version = told.partition('version "')[2].partition('"')[0].partition(".")[0]
    if not version.isdigit() or int(version) < _OLDEST_JAVA:
        raise KafkaUnavailableError(
            f"a Kafka broker needs Java {_OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless)"
        )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _known_brokers(port: int) -> int:
    """Ask a broker, without a client library, how many brokers it knows (Metadata, version 1)."""
    body = struct.pack(">hhih", 3, 1, 1, 4) + b"wait" + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), 1) as connection:
        connection.settimeout(2)
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answer:
            size = answer.read(4)
            if len(size) < 4:
                raise ConnectionError
            data = answer.read(struct.unpack(">i", size)[0])
    count: int = struct.unpack(">i", data[4:8])[0]
    return count
