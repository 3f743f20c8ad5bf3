"""The log of the Kafka client where no broker answers."""

from __future__ import annotations

import logging
import time
from threading import Thread

import pytest
from patience import PATIENT_S

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import KafkaError

from sluiceway.clock import SystemClock
from sluiceway.connector import ReaderContext
from sluiceway.errors import ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway_kafka import KafkaSource, _client_log
from sluiceway_kafka._client_log import RepeatedLines, client_log
from sluiceway_kafka._connection import Connection
from sluiceway_kafka._coordinator import _LogFilter
from sluiceway_kafka._producer import Outbox
from sluiceway_kafka._reader import KafkaReader

FAIL = "FAIL [rdkafka#producer-{0}] [thrd:a:1/bootstrap]: a:1/bootstrap: Connect failed: refused (after {0}ms)"


def line(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("sluiceway_kafka.client", level, __file__, 1, "%s", (text,), None)


def test_a_refused_connection_is_logged_once_and_fails_in_time(
    refusing_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_client_log, "_QUIET_S", PATIENT_S)
    logger = client_log()
    monkeypatch.setattr(logger, "filters", [RepeatedLines()])
    connection = Connection(f"127.0.0.1:{refusing_port}", timeout_ms=1_500)
    with caplog.at_level(logging.INFO, logger.name), pytest.raises(ConnectorError, match="Connection refused"):
        connection.admin()
    refused = [record for record in caplog.records if "Connection refused" in record.getMessage()]
    assert len(refused) == 1, refused


def test_a_kind_of_line_is_let_through_again_with_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines = RepeatedLines()
    assert lines.filter(line(FAIL.format(1)))
    assert not any(lines.filter(line(FAIL.format(number))) for number in range(2, 7))
    assert lines.filter(line("FAIL [rdkafka#producer-1] [thrd:a:1/bootstrap]: a:1/bootstrap: Disconnected"))
    assert lines.filter(line(FAIL.format(7), logging.DEBUG))
    now = 131.0
    again = line(FAIL.format(8))
    assert lines.filter(again)
    assert again.getMessage() == FAIL.format(8) + " (5 more lines of this kind in the last 31 s)"


def test_kinds_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_client_log, "_MOST_KINDS", 3)
    lines = RepeatedLines()
    assert all(lines.filter(line(f"FAIL broker {name} is down")) for name in "abcd")
    assert len(lines._kinds) == 3
    assert lines.filter(line("FAIL broker a is down"))


def test_brokers_that_are_gone_are_logged_once(
    refusing_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client says so at each attempt to connect."""
    monkeypatch.setattr(client_log(), "filters", [RepeatedLines()])
    connection = Connection(f"127.0.0.1:{refusing_port}")
    outboxes = [Outbox(connection, {}, lambda: None) for _ in range(2)]
    for outbox in outboxes * 2:
        outbox._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        outbox.check()
    context = ReaderContext(0, 1, SystemClock(), lambda: None, lambda: None, MetricGroup())
    reader = KafkaSource(connection.servers, "t").create_reader(context)
    assert isinstance(reader, KafkaReader)
    reader._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    for outbox in outboxes:
        outbox.close()
    assert sum("can be reached" in record.getMessage() for record in caplog.records) == 1


def test_coordinators_log_each_kind_of_error_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients of kafka-python in the process log as they do without the connector."""
    monkeypatch.setattr(_LogFilter, "_repeated", RepeatedLines())
    _LogFilter.install()
    logger = logging.getLogger("kafka.cluster")

    def log() -> None:
        for number in range(3):
            logger.warning("No node available for metadata refresh %d", number)

    for name in ("sluiceway-coordinator", "another client"):
        thread = Thread(target=log, name=name)
        thread.start()
        thread.join()
    assert [record.threadName for record in caplog.records] == ["sluiceway-coordinator", *["another client"] * 3]
