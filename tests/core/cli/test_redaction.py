"""Credentials are not shown, wherever a URL or an option gets into a text."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.errors import CheckpointError, ConfigurationError, ConnectorError, SluicewayError
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.failures.error_texts import describe, format_error
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.util.redaction import is_secret, redact, redact_option, redact_options, redact_urls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:hush@db/x?sslpassword=hush&a=1", "postgresql://ann:***@db/x?sslpassword=***&a=1"),
        ("mysql+pymysql://u:hush%40hush@h:3306/d", "mysql+pymysql://u:***@h:3306/d"),
        ("redis://:hush@h:6379/0", "redis://:***@h:6379/0"),
        ("s3://key:hush/with/hush@bucket/x", "s3://key:***@bucket/x"),
        ("amqp://u:hu@sh@h/v", "amqp://u:***@h/v"),
        ("https://hushhushhushhushhushhush@h/x", "https://***@h/x"),
        ("hdfs://ann@namenode/x", "hdfs://ann@namenode/x"),
        ("s3://b/x?AWSAccessKeyId=hush&Signature=hush", "s3://b/x?AWSAccessKeyId=***&Signature=***"),
        ("{'password': 'hush', 'user': 'ann'}", "{'password': '***', 'user': 'ann'}"),
        ("host=h password=hush user=ann", "host=h password=*** user=ann"),
        ('connect(api_key="hu sh", port=1)', 'connect(api_key="***", port=1)'),
        ("Server=h;Password=hush;Uid=a", "Server=h;Password=***;Uid=a"),
        ("sasl.password=hush", "sasl.password=***"),
        ("AWS_SECRET_ACCESS_KEY=hush", "AWS_SECRET_ACCESS_KEY=***"),
        ("in http://h/a: see ftp://u:hush@h/b", "in http://h/a: see ftp://u:***@h/b"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "file:///a@b/c:d",
        "mail x@y.z about http://h/p@q",
        "http://h:80/x y@z",
        "the key: 5 of a record",
        "a cluster's secret is not known",
        "key_by(lambda value: value.key)",
        "tokenize=words",
        "10:30 @ http://h",
        "",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_long_texts_take_no_time_to_speak_of() -> None:
    began = time.process_time()
    for text in ("x" * 200_000, "://" + "a" * 200_000 + "@", "password " * 20_000, "a:" * 100_000 + "@://"):
        redact(text)
    assert time.process_time() - began < 20


def test_names_of_options() -> None:
    secret = ["password", "sasl.password", "s3.secret-key", "aws_secret_access_key", "token", "api_key", "key"]
    plain = ["key_serializer", "primary_key", "keys", "tokenizer", "user", "checkpoints", "secrets_file"]
    assert [name for name in [*secret, *plain] if is_secret(name)] == secret
    shown = redact_options(
        {"password": "hush", "url": "x://u:hush@h", "n": 1, "more": {"token": "hush"}, "t": None}
    )
    assert shown == {"password": "***", "url": "x://u:***@h", "n": 1, "more": {"token": "***"}, "t": None}
    assert redact_option("places", ["x://u:hush@h", 3]) == ["x://u:***@h", 3]
    assert redact_option("password", None) is None


def test_code_keeps_its_assignments_and_loses_passwords_of_urls() -> None:
    assert redact_urls("token = next(tokens)") == "token = next(tokens)"
    assert redact_urls("open('x://u:hush@h')") == "open('x://u:***@h')"


@pytest.mark.parametrize("kind", [SluicewayError, ConfigurationError, ConnectorError, CheckpointError])
def test_our_errors_hold_none(kind: type[SluicewayError]) -> None:
    error = kind("cannot reach x://u:hush@h: password=hush")
    assert "hush" not in f"{error} {error!r}"


def test_what_is_shown_of_other_errors_holds_none() -> None:
    error = OSError("cannot reach x://u:hush@h")
    assert describe(error) == "OSError: cannot reach x://u:***@h"
    assert "x://u:***@h" in format_error(error)


def test_logs_hold_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log(WARNING, "jobs", "resumes from s3://u:hush@b/chk-1")
    assert "s3://u:***@b/chk-1" in caplog.text


def test_settings_hold_none_when_they_are_shown() -> None:
    settings = Settings(checkpoints="s3://u:hush@b/x")
    assert settings.checkpoints == "s3://u:hush@b/x"
    assert "s3://u:***@b/x" in repr(settings)
    assert "hush" not in repr(settings)
    assert "hush" not in repr(ClusterConfig(1, 1, "shm", "/d", "hush"))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_config_show(form: list[str], sluiceway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_CHECKPOINTS", "s3://u:hush@b/x")
    result = sluiceway("config", "show", "--from", "hdfs://u:hush@h/y", *form)
    assert result.exit_code == 0
    assert "hush" not in result.output
    assert "s3://u:***@b/x" in result.output
    assert "hdfs://u:***@h/y" in result.output
    if form:
        json.loads(result.stdout)


def test_plans_hold_none(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        flow = sw.Pipeline("plain")
        lines = flow.source("files", paths="memory://u:hush@b/in")
        lines.sink("files", directory="memory://u:hush@b/out")
        """,
    )
    for form in ("text", "json", "mermaid", "html"):
        result = sluiceway("explain", "job.py", "--format", form)
        assert result.exit_code == 0, result.output
        assert "hush" not in result.output


def test_places_that_cannot_be_used_are_named_without(tmp_path: Any) -> None:
    flow = sw.Pipeline("refused")
    flow.from_collection([1]).print()
    with pytest.raises(SluicewayError) as caught:
        flow.run(checkpoints="odd://u:hush@h/x")
    assert "odd://u:***@h/x" in str(caught.value)
