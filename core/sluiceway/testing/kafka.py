"""Brokers of Apache Kafka on 127.0.0.1 for tests and for trying things out, from the jars of Maven Central.

Needs Java 17 or newer, and Maven once, to fetch the jars. With pytest, use the fixture ``kafka_broker`` of
``sluiceway.testing.pytest_plugin``, which skips a test with the reason if no broker can be started::

    @pytest.mark.kafka
    def test_orders(kafka_broker):
        run_pipeline(kafka_broker.bootstrap_servers)

From a shell, a broker that runs until Ctrl-C::

    python -m sluiceway.testing.kafka --port 9092 --topic orders:4
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeAlias

from sluiceway.util.install_hints import install_command

__all__ = ["KAFKA_VERSION", "KafkaCluster", "KafkaUnavailableError", "Protocol", "create_certificates"]

KAFKA_VERSION: Final = "4.4.0"
"""The version of Apache Kafka that is fetched."""

_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sluiceway</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""

Protocol: TypeAlias = Literal["SASL_PLAINTEXT", "SSL", "SASL_SSL"]
"""Security protocol of a listener, as the property ``security.protocol`` calls it."""

_SECURED: Final[tuple[Protocol, ...]] = ("SASL_PLAINTEXT", "SSL", "SASL_SSL")
_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_USER: Final = "ann"
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
        root: directory of their files, which is kept; None: a temporary directory, removed at the end. A directory
            of an earlier cluster with as many brokers starts these again with their topics.
        port: port of the first broker, the others follow it; 0: any free ports.
        heap: the most memory of each broker, as ``-Xmx`` takes it.
        features: levels of features such as ``transaction.version``, where they are to differ from the newest.
        properties: properties of the brokers, such as ``transaction.max.timeout.ms``.
        secured: whether brokers also listen with SASL and TLS; see :meth:`servers` and :meth:`client_properties`.
            Needs openssl, which makes the certificates.

    Attributes:
        bootstrap_servers: ``127.0.0.1:port`` of each broker, separated by commas, without SASL and TLS.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        root: str | os.PathLike[str] | None = None,
        port: int = 0,
        heap: str = "256m",
        features: Mapping[str, int] | None = None,
        properties: Mapping[str, object] | None = None,
        secured: bool = False,
    ) -> None:
        self._count = brokers
        self._heap = heap
        self._features = dict(features or {})
        self._properties = dict(properties or {})
        self._own = root is None
        self._first_port = port
        self._given_root = root
        self._root = Path()
        self._cluster_id = "-"
        while self._cluster_id.startswith("-"):  # the tool takes it for an option
            self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._secured = secured
        self._password = secrets.token_urlsafe(12)
        self._secured_ports: dict[Protocol, list[int]] = {}
        self._ports: list[int] = []
        self._controllers: list[int] = []
        self._jars = Path()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap_servers = ""

    def __enter__(self) -> KafkaCluster:
        self._jars = _fetched_jars()
        self._choose_ports()
        self._root = Path(tempfile.mkdtemp(prefix="kafka-") if self._given_root is None else self._given_root)
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        try:
            if self._secured:
                create_certificates(self._root / "tls", self._password)
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

    def _choose_ports(self) -> None:
        """Choose the ports of all listeners at once: a free one that is let go may be the next one to be found."""
        count, secured = self._count, _SECURED if self._secured else ()
        given = [self._first_port + number for number in range(count)] if self._first_port else [0] * count
        found = _ports(given + [0] * (count * (1 + len(secured))))
        self._ports, self._controllers, *others = (found[i : i + count] for i in range(0, len(found), count))
        self._secured_ports = dict(zip(secured, others, strict=True))

    def servers(self, protocol: Protocol) -> str:
        """Return ``127.0.0.1:port`` of each broker's listener for a protocol, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._secured_ports[protocol])

    def client_properties(self, protocol: Protocol, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the properties of librdkafka with which a client reaches the listener of a protocol.

        Args:
            protocol: ``SSL`` asks clients for a certificate, the others for the password of the user ``ann``.
            mechanism: of SASL: ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        """
        tls = self._root / "tls"
        properties: dict[str, str] = {"security.protocol": protocol}
        if protocol != "SSL":
            properties |= {
                "sasl.mechanism": mechanism,
                "sasl.username": _USER,
                "sasl.password": self._password,
            }
        if protocol != "SASL_PLAINTEXT":
            properties["ssl.ca.location"] = str(tls / "ca.pem")
        if protocol == "SSL":
            properties |= {
                "ssl.certificate.location": str(tls / "client.pem"),
                "ssl.key.location": str(tls / "client.key"),
                "ssl.key.password": self._password,
            }
        return properties

    def start(self, broker: int = 1) -> None:
        """Start a broker that was killed or stopped, with the data that it has. Brokers count from 1."""
        properties = self._write(broker)
        with open(self._directory(broker) / "server.log", "ab") as log:
            self._processes[broker] = subprocess.Popen(
                self._java("kafka.Kafka", str(properties), heap=self._heap),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Ctrl-C in the terminal is not for the broker: the cluster ends it.
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

    def join(self) -> tuple[int, int]:
        """Wait until a broker ends by itself. Returns its number and its exit code."""
        while True:
            for broker, process in self._processes.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return broker, process.wait(0.5)

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
        listeners = ",".join(
            [
                f"PLAINTEXT://127.0.0.1:{port}",
                *(f"{name}://127.0.0.1:{ports[broker - 1]}" for name, ports in self._secured_ports.items()),
            ]
        )
        properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker,
            "controller.quorum.voters": voters,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in ("PLAINTEXT", *self._secured_ports))]
            ),
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
            # Ten seconds by default, for which tests of timed-out transactions would wait.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": least,
            "share.coordinator.state.topic.num.partitions": 1,
            # Three seconds by default, in which the first consumers of a group read nothing.
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "num.network.threads": 2,
            "num.io.threads": 4,
            # Tests and examples write records with timestamps of long ago, which brokers would delete.
            "log.retention.ms": -1,
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
            **(self._security() if self._secured else {}),
            **self._properties,
        }
        directory = self._directory(broker)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return file

    def _security(self) -> dict[str, object]:
        tls = self._root / "tls"
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        found: dict[str, object] = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": tls / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": tls / "ca.pem",
            "listener.name.ssl.ssl.client.auth": "required",
        }
        for listener in ("sasl_plaintext", "sasl_ssl"):
            before = f"listener.name.{listener}"
            found[f"{before}.plain.sasl.jaas.config"] = f'{plain} required user_{_USER}="{self._password}";'
            for mechanism in _SCRAM:
                found[f"{before}.{mechanism.lower()}.sasl.jaas.config"] = f"{scram} required;"
        return found

    def _format(self, broker: int) -> None:
        if (self._directory(broker) / "data" / "meta.properties").exists():
            return
        features = [word for name, level in self._features.items() for word in ("--feature", f"{name}={level}")]
        users = []
        if self._secured:
            for mechanism in _SCRAM:
                users += ["--add-scram", f"{mechanism}=[name={_USER},password={self._password}]"]
        arguments = ["format", "-t", self._cluster_id, "-c", str(self._write(broker)), *features, *users]
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


def create_certificates(directory: Path, password: str) -> None:
    """Create an authority, and certificates of it for a broker at 127.0.0.1 and for a client, as PEM files.

    Args:
        directory: created; gets ``ca.pem``, ``broker.pem`` (with its key), ``client.pem``, ``client.key``.
        password: of ``client.key``.

    Raises:
        KafkaUnavailableError: openssl is missing.
    """
    if shutil.which("openssl") is None:
        raise KafkaUnavailableError("certificates are made with openssl, which is not installed")
    if (directory / "client.pem").exists():
        return
    directory.mkdir(parents=True)

    def openssl(*arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"openssl {arguments[0]} has failed:\n{done.stderr[-2000:]}")

    key = ["-newkey", "rsa:2048"]
    openssl(
        "req", "-x509", *key, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-subj", "/CN=ca"
    )
    (directory / "broker.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    (directory / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name, how in (("broker", ["-nodes"]), ("client", ["-passout", f"pass:{password}"])):
        openssl("req", *key, *how, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30"]
        openssl("x509", "-req", "-in", f"{name}.csr", *authority, "-extfile", f"{name}.ext", "-out", f"{name}.pem")
    # A PEM keystore is one file with the key and its certificate.
    certificate = directory / "broker.pem"
    certificate.write_text((directory / "broker.key").read_text() + certificate.read_text())


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


def _ports(wanted: Sequence[int]) -> list[int]:
    """Return free ports, of which 0 takes any; they stay free only until somebody else takes them."""
    with contextlib.ExitStack() as stack:
        bound = []
        for port in wanted:
            each = stack.enter_context(socket.socket())
            # As the broker does: connections of the one before it may not be forgotten yet.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                each.bind(("127.0.0.1", port))
            except OSError as error:
                raise KafkaUnavailableError(
                    f"port {port} of 127.0.0.1 cannot be used: {error.strerror}"
                ) from error
            bound.append(each.getsockname()[1])
        return bound


def _known_brokers(port: int) -> int:
    """Ask a broker, without a client library, how many brokers it knows (Metadata, version 1)."""
    # API 3 (Metadata) in version 1, correlation id 1, client "wait", no topics.
    body = struct.pack(">hhih", 3, 1, 1, 4) + b"wait" + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), 1) as connection:
        connection.settimeout(2)
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answer:
            size = answer.read(4)
            if len(size) < 4:
                raise ConnectionError
            data = answer.read(struct.unpack(">i", size)[0])
    # Behind the correlation id comes the list of brokers.
    count: int = struct.unpack(">i", data[4:8])[0]
    return count


# ---- python -m sluiceway.testing.kafka -----------------------------------------------------------------------


def _create_topics(servers: str, topics: Mapping[str, int]) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    for name, future in admin.create_topics([NewTopic(name, count) for name, count in topics.items()]).items():
        try:
            future.result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise KafkaUnavailableError(f"topic {name!r} cannot be created: {error.args[0].str()}") from error


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdigit() or partitions == "0":
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return name, int(partitions or 1)


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sluiceway.testing.kafka",
        description=f"Run brokers of Apache Kafka {KAFKA_VERSION} on 127.0.0.1 until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=9092, help="port of the first broker; 0: any. Default: 9092")
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers. Default: 1")
    parser.add_argument("--directory", help="directory of the data, which is kept. Default: a temporary one")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="topic to create, unless it exists; can be repeated",
    )
    given = parser.parse_args(arguments)
    # SIGTERM ends the brokers in order, too. Shells have background programs ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with KafkaCluster(given.brokers, root=given.directory, port=given.port) as cluster:
            if given.topic:
                _create_topics(cluster.bootstrap_servers, dict(given.topic))
            print(f"Apache Kafka {KAFKA_VERSION} at {cluster.bootstrap_servers}. Ctrl-C ends it.", flush=True)
            broker, code = cluster.join()
            print(f"broker {broker} has ended with {code}:\n{cluster.log(broker)[-3000:]}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0
    except ImportError as error:
        print(f"topics are created with {error.name}: {install_command('sluiceway[kafka]')}", file=sys.stderr)
        return 3
    except KafkaUnavailableError as error:
        print(f"no broker: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
