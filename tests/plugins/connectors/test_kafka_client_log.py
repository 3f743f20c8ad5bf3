"""The log of the Kafka client where no broker answers."""

from __future__ import annotations

import logging
import time

import pytest
from patience import PATIENT_S

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from sluiceway.errors import ConnectorError
from sluiceway_kafka import _client_log
from sluiceway_kafka._client_log import RepeatedLines, client_log
from sluiceway_kafka._connection import Connection

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
