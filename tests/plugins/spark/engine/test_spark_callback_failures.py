"""Texts of failed functions of foreachBatch, as Spark looks for interrupts in them."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

from sluiceway.errors import ConnectorError
from sluiceway.plugins import default_manager
from sluiceway_spark.structured.callback_failures import CallbackFailedError, in_short
from sluiceway_spark.structured.streaming_query import StreamQuery

STACK = "\n".join(f"\tat org.apache.spark.scheduler.Some$Class.method{n}(Some.scala:{n})" for n in range(200))
GROUP = "2d3f4d1c-9a52-4f7b-8f5a-3f1b6c1d2e3f"
CALLED = "py4j.protocol.Py4JJavaError: An error occurred while calling o51.collectToPython.\n: "


def raised(text: str, cause: str = "") -> Exception:
    error = ConnectorError(text)
    if cause:
        error.__cause__ = RuntimeError(cause)
    return error


def text_of(error: Exception) -> str:
    """As py4j sends it."""
    try:
        raise in_short(error) from None
    except Exception:
        return traceback.format_exc()


@pytest.mark.parametrize(
    "name",
    [
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    ],
)
def test_an_interrupt_stays_one(name: str) -> None:
    text = text_of(raised("Spark: it has failed", f"{CALLED}{name}\n{STACK}"))
    assert "Py4JJavaError: An error occurred while calling" in text
    assert text.rstrip().endswith(name)
    assert len(text.partition("Py4JJavaError")[2]) < 200


def test_a_cancelled_job_group_stays_one() -> None:
    cancelled = f"org.apache.spark.SparkException: Job 7 cancelled part of cancelled job group {GROUP}"
    text = text_of(raised("Spark: it has failed", f"{CALLED}{cancelled}\n{STACK}"))
    assert "org.apache.spark.SparkException" in text
    assert "cancelled" in text
    assert GROUP in text
    assert len(text) < 2_000


def test_any_other_failure_is_said_in_a_line() -> None:
    error = raised("the disk is full" + "!" * 5_000, STACK)
    error.add_note("record: 7")
    text = text_of(error)
    assert "ConnectorError: the disk is full!!" in text
    assert len(text) < 2_000


class Sinks:
    """Sinks whose micro-batch fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def time_of(self, batch: int) -> int:
        raise self.error


def query() -> StreamQuery:
    made = StreamQuery.__new__(StreamQuery)
    made._session = MagicMock()
    made._services = default_manager().services()
    made._described = SimpleNamespace(job="words")  # type: ignore[assignment]
    made._progress = MagicMock()
    made._problem = made._sent = None
    return made


def test_spark_gets_the_short_text_and_the_job_the_exception() -> None:
    error = raised("the sink is full", f"{CALLED}java.lang.InterruptedException\n{STACK}")
    made = query()
    with pytest.raises(CallbackFailedError) as caught:
        made._write(Sinks(error), None, 3)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200
    assert made._problem is error
    failed = MagicMock()
    failed.awaitTermination.side_effect = RuntimeError("[STREAM_FAILED] Query terminated with exception")
    with pytest.raises(ConnectorError, match="the sink is full"):
        made._wait(failed, MagicMock())


def test_what_a_function_was_handling_when_it_failed_is_kept() -> None:
    try:
        try:
            int("x")
        except ValueError:
            raise KeyError("x")  # noqa: B904
    except KeyError as error:
        handled = error.__context__
        made = query()
        made._problem = error
    failed = MagicMock()
    failed.awaitTermination.side_effect = RuntimeError("[STREAM_FAILED] Query terminated with exception")
    with pytest.raises(KeyError) as caught:
        made._wait(failed, MagicMock())
    assert caught.value.__context__ is handled
    assert not caught.value.__suppress_context__


def test_a_query_whose_thread_has_died_ends_the_job_at_once() -> None:
    """Spark counts it as ended, without an exception."""
    died = MagicMock()
    died.awaitTermination.return_value = True
    with pytest.raises(ConnectorError, match=r"query of 'words' and gives no error: .* or its thread .* has died"):
        query()._wait(died, MagicMock())


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["java.lang.InterruptedException", "java.io.IOException"])
def test_spark_finds_an_interrupt_in_it_or_none(spark: Any, name: str) -> None:
    """With the whole stack Spark's expression overflows that of the thread."""
    jvm = spark.sparkContext._jvm
    package = jvm.org.apache.spark.sql.execution.streaming
    execution: Any = SimpleNamespace(found=None)
    for place in (package, package.runtime):
        if callable(getattr(place.StreamExecution, "isInterruptionException", None)):
            execution.found = place.StreamExecution
    text = text_of(raised("Spark: it has failed", f"{CALLED}{name}\n{STACK}"))
    failure = jvm.py4j.Py4JException(text)
    context = spark.sparkContext._jsc.sc()
    assert execution.found.isInterruptionException(failure, context) == (name == "java.lang.InterruptedException")
