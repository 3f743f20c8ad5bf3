"""Source, sink and commands against a broker with SASL and TLS: what works, and what wrong settings say."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.cli.app import app
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.drivers import SinkDriver, SourceDriver
from sluiceway.testing.kafka import KafkaCluster, create_certificates

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from sluiceway_kafka import KafkaSink, KafkaSource
from sluiceway_kafka._connection import connection_of
from sluiceway_kafka._coordinator import Coordinator
from sluiceway_kafka._security import security_context

pytestmark = [pytest.mark.timeout(PATIENT_S)]

_GUARANTEES = ("none", "at-least-once", "exactly-once")
_prefixes = itertools.count()


class Secured:
    """The broker, and its topics by the listener without security."""

    def __init__(self, cluster: KafkaCluster) -> None:
        from tests.plugins.connectors.kafkatopics import Topics

        self.cluster = cluster
        self.topics = Topics(cluster.bootstrap_servers)

    @property
    def password(self) -> str:
        return self.cluster.client_properties("SASL_SSL")["sasl.password"]

    def sink(self, servers: str, topic: str, guarantee: str, properties: dict[str, Any], prefix: str = "") -> Any:
        options: dict[str, Any] = {}
        if guarantee == "exactly-once":
            options["transactional_id_prefix"] = prefix or f"secured{next(_prefixes)}"
        return KafkaSink(servers, topic, guarantee=guarantee, properties=properties, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def secured(kafka_secured_broker: KafkaCluster) -> Iterator[Secured]:
    secured = Secured(kafka_secured_broker)
    yield secured
    secured.topics.close()


def read(source: KafkaSource) -> list[Any]:
    with SourceDriver(source) as driver:
        return driver.run()


# ---- what works -----------------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SSL", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_what_is_written_is_read(
    secured: Secured, caplog: pytest.LogCaptureFixture, protocol: Any, mechanism: str
) -> None:
    """With all guarantees; the last transaction is committed by another attempt. No log has the password."""
    caplog.set_level(logging.DEBUG)
    servers, properties = secured.cluster.servers(protocol), secured.cluster.client_properties(protocol, mechanism)
    properties |= {"client.rack": "here", "client.dns.lookup": "use_all_dns_ips"}
    topic = secured.topics.make()
    for guarantee in _GUARANTEES:
        sink = secured.sink(servers, topic, guarantee, properties)
        with SinkDriver(sink, checkpoints=True) as driver:
            driver.write([f"{guarantee} 1"])
            driver.checkpoint()
            driver.complete()
            driver.write([f"{guarantee} 2"])
            kept = driver.checkpoint()
            if guarantee != "exactly-once":
                driver.finish()
        if guarantee == "exactly-once":
            with SinkDriver(sink, checkpoints=True, restored=kept):
                pass
    source = KafkaSource(servers, topic, stop="latest", properties=properties)
    assert read(source) == [f"{guarantee} {number}" for guarantee in _GUARANTEES for number in (1, 2)]
    assert secured.password not in caplog.text


@pytest.mark.kafka
def test_commands_take_the_same_properties(secured: Secured, tmp_path: Path) -> None:
    servers, properties = secured.cluster.servers("SASL_SSL"), secured.cluster.client_properties("SASL_SSL")
    file = tmp_path / "client.properties"
    file.write_text("# of the cluster\n\n" + "".join(f"{name} = {value}\n" for name, value in properties.items()))

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["kafka", "transactions", *arguments, "-b", servers])
        return result.exit_code, result.output

    topic = secured.topics.make()
    drivers = []
    for prefix in ("command-a", "command-b"):
        sink = secured.sink(servers, topic, "exactly-once", properties, prefix)
        drivers.append(SinkDriver(sink, checkpoints=True).__enter__())
        drivers[-1].write([prefix])
        drivers[-1].checkpoint()
    options = [f"--properties-file={file}"]
    code, listed = run("list", "--prefix", "command-", "--open", *options)
    assert (code, [line.split()[0] for line in listed.splitlines()]) == (
        0,
        ["ID", "command-a-0-0", "command-b-0-0"],
    )
    assert run("commit", "command-a-0-0", *options) == (0, "command-a-0-0: committed\n")
    single = [word for name, value in properties.items() for word in ("--property", f"{name}={value}")]
    assert run("abort", "command-b-0-0", *single) == (0, "command-b-0-0: aborted\n")
    assert secured.topics.values(topic) == ["command-a"]
    for driver in drivers:
        driver.__exit__(None, None, None)

    code, said = run("list", *options, "--property", "sasl.password=wrong-one")
    assert code == 3
    assert f"cannot log in at {servers}" in said
    assert "sasl.password" in said
    assert "wrong-one" not in said
    code, said = run("list", *options, "--property", "clent.id=x")
    assert code == 2
    assert 'No such configuration property: "clent.id"' in said
    code, said = run("list", "--property", "hush-hush")
    assert (code, "hush-hush" in said) == (2, False)
    assert "must be NAME=VALUE" in said
    file.write_text("security.protocol=SASL_SSL\nhush-hush\n")
    code, said = run("list", *options)
    assert (code, "hush-hush" in said) == (2, False)
    assert f"{file}, line 2: must be NAME=VALUE" in said


# ---- what is refused ------------------------------------------------------------------------------------------


def _wrong_password(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    return cluster.servers("SASL_SSL"), cluster.client_properties("SASL_SSL") | {"sasl.password": "wrong-one"}


def _wrong_authority(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    authority = {"ssl.ca.location": str(other / "ca.pem")}
    return cluster.servers("SASL_SSL"), cluster.client_properties("SASL_SSL") | authority


def _no_certificate(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    properties = cluster.client_properties("SSL")
    return cluster.servers("SSL"), {name: properties[name] for name in ("security.protocol", "ssl.ca.location")}


def _another_host(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    servers = cluster.servers("SASL_SSL").replace("127.0.0.1", "localhost")
    return servers, cluster.client_properties("SASL_SSL")


def _another_listener(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    return cluster.bootstrap_servers, cluster.client_properties("SASL_SSL")


def _no_security(cluster: KafkaCluster, other: Path) -> tuple[str, dict[str, str]]:
    return cluster.servers("SASL_SSL"), {}


Mistake = Callable[[KafkaCluster, Path], tuple[str, dict[str, str]]]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (_wrong_password, "sasl.password"),
        (_wrong_authority, "ssl.ca.location"),
        (_no_certificate, "ssl.certificate.location"),
        (_another_host, "address"),
        (_another_listener, "security.protocol"),
        (_no_security, "security.protocol"),
    ],
)
def test_mistakes_name_the_server_and_what_to_check(
    secured: Secured, tmp_path: Path, mistake: Mistake, check: str
) -> None:
    create_certificates(tmp_path / "other", "x")
    servers, properties = mistake(secured.cluster, tmp_path / "other")
    final = mistake not in (_another_listener, _no_security)
    # Only what may pass is waited for.
    options = {"request_timeout": f"{PATIENT_S}s" if final else "500ms"}
    topic = secured.topics.make()

    def fails(act: Callable[[], object]) -> None:
        with pytest.raises(ConnectorError) as caught:
            act()
        said = str(caught.value)
        assert f"at {servers}" in said
        assert f"{check}" in said.partition("Check ")[2]
        assert "wrong-one" not in said

    fails(lambda: read(KafkaSource(servers, topic, stop="latest", properties=properties, **options)))  # type: ignore[arg-type]
    for guarantee in _GUARANTEES:
        prefix = {"transactional_id_prefix": "mistakes"} if guarantee == "exactly-once" else {}
        sink = KafkaSink(servers, topic, guarantee=guarantee, properties=properties, **options, **prefix)  # type: ignore[arg-type]
        fails(lambda sink=sink: SinkDriver(sink, checkpoints=True).__enter__())  # type: ignore[misc]


@pytest.mark.kafka
def test_host_names_of_certificates_need_not_be_checked(secured: Secured) -> None:
    servers = secured.cluster.servers("SASL_SSL").replace("127.0.0.1", "localhost")
    properties = secured.cluster.client_properties("SASL_SSL")
    for setting in (
        {"ssl.endpoint.identification.algorithm": "none"},
        {"enable.ssl.certificate.verification": False},
    ):
        Coordinator(connection_of(servers, properties | setting, "30s")).close()


@pytest.mark.kafka
@pytest.mark.slow
def test_credentials_that_end_while_a_job_runs(tmp_path: Path, secured: Secured) -> None:
    """Connections live on; when they break, brokers refuse new ones."""
    from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion

    with KafkaCluster(root=tmp_path, secured=True) as cluster:
        own = Secured(cluster)
        servers, properties = cluster.servers("SASL_PLAINTEXT"), cluster.client_properties("SASL_PLAINTEXT")
        topic = own.topics.make()
        own.topics.write(topic, ["before"])
        with SourceDriver(KafkaSource(servers, topic, properties=properties)) as source:
            sinks = [
                SinkDriver(
                    own.sink(servers, own.topics.make(), guarantee, properties), checkpoints=True
                ).__enter__()
                for guarantee in _GUARANTEES
            ]
            assert source.run(1) == ["before"]
            deletion = UserScramCredentialDeletion("ann", ScramMechanism.SCRAM_SHA_512)
            own.topics.admin.alter_user_scram_credentials([deletion])["ann"].result(60)
            cluster.kill()
            cluster.start()
            with pytest.raises(ConnectorError, match=rf"cannot read at {servers}: .*Check .*sasl\.password"):
                source.run(2)
            for sink in sinks:
                with pytest.raises(ConnectorError, match=rf"cannot write at {servers}: .*Check .*sasl\.password"):
                    _write(sink)
                sink.__exit__(None, None, None)
        del own.topics


def _write(driver: SinkDriver) -> None:
    driver.write(["after"])
    driver.finish()


@pytest.mark.parametrize(
    "name",
    ["ssl.key.pem", "ssl.keystore.location", "ssl.cipher.suites", "sasl.kerberos.keytab", "oauth_cb", "socket_cb"],
)
def test_what_one_client_cannot_do_is_refused_by_name(name: str) -> None:
    properties = {"security.protocol": "SASL_SSL", name: "x"}
    assert KafkaSink("127.0.0.1:1", "t", properties=properties)
    with pytest.raises(ConfigurationError, match=rf"property '{name}' cannot be used with transactions"):
        KafkaSink("127.0.0.1:1", "t", guarantee="exactly-once", transactional_id_prefix="p", properties=properties)


def test_a_mechanism_of_one_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl.mechanism='OAUTHBEARER' cannot be used"):
        KafkaSink(
            "127.0.0.1:1",
            "t",
            guarantee="exactly-once",
            transactional_id_prefix="p",
            properties={"sasl.mechanism": "OAUTHBEARER"},
        )


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    create_certificates(tmp_path / "tls", "hush-hush")
    with pytest.raises(ConfigurationError, match=r"ssl.ca.location='.*/missing'.*No such file"):
        security_context({"ssl.ca.location": str(tmp_path / "missing")})
    client = {
        "ssl.certificate.location": str(tmp_path / "tls" / "client.pem"),
        "ssl.key.location": str(tmp_path / "tls" / "client.key"),
    }
    security_context({**client, "ssl.key.password": "hush-hush"})
    for password in ({}, {"ssl.key.password": "wrong-one"}):
        with pytest.raises(ConfigurationError, match=r"ssl\.key\.location='.*client\.key'") as caught:
            security_context({**client, **password})
        assert "wrong-one" not in str(caught.value)


def test_secrets_of_both_connectors_show_nowhere() -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "hush-hush",
        "ssl.key.password": "hush-hush",
    }
    flow = sw.Pipeline("secrets")
    servers = "127.0.0.1:1"
    stream = flow.source("kafka", bootstrap_servers=servers, topics="orders", properties=properties)
    stream.sink(
        "kafka",
        bootstrap_servers=servers,
        topic="totals",
        guarantee="exactly-once",
        transactional_id_prefix="p",
        properties=properties,
    )
    shown = flow.explain() + repr(vars(flow))
    for part in flow.explain().splitlines():
        assert "hush-hush" not in part
    assert "hush-hush" not in shown
