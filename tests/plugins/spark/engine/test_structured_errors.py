"""What comes out of what Spark says when a job has failed."""

from __future__ import annotations

import logging
import re
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway_spark.structured.job_group import users_error
from sluiceway_spark.structured.stages.batch_tasks import sent
from sluiceway_spark.structured.stages.stateful_stage import _batch_number
from sluiceway_spark.structured.streaming_query import _told_once


class JavaError(Exception):
    """As py4j has them."""

    __module__ = "py4j.protocol"


STACK = """An error occurred while calling o52.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Python worker exited unexpectedly
\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.io.EOFException
"""


def test_a_users_exception_is_found_in_the_stack_with_its_notes() -> None:
    def fails() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError) as caught:
        fails()
    thrown = explain_failure(caught.value, vertex="map", step="map", subtask=1, parallelism=2)
    assert isinstance(thrown, Exception)
    said = f"Job aborted: Traceback ...\n  PythonException: {sent(thrown)}\n\tat org.apache.spark.Something"
    found = users_error(JavaError(said))
    assert isinstance(found, LookupError)
    assert found.args == ("no such thing",)
    assert found.__notes__ == ["in step 'map', subtask 2 of 2"]
    assert "in fails" in str(found.__cause__)


def test_of_an_exception_that_only_waited_the_cause_is_told() -> None:
    found = users_error(JavaError(STACK))
    assert isinstance(found, ConnectorError)
    assert str(found) == "Spark: Job aborted due to stage failure: Python worker exited unexpectedly"
    assert isinstance(found.__cause__, JavaError)


MISMATCH = """Job aborted due to stage failure: Task 0: org.apache.spark.api.python.PythonException: Traceback:
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different \
version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set.
\tat org.apache.spark.api.python.BasePythonRunner"""
MISSING = """Job aborted due to stage failure: Task 0: org.apache.spark.api.python.PythonException: Traceback:
ModuleNotFoundError: No module named 'pyarrow'
\tat org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("text", "what"), [(MISMATCH, r"Python 3\.12"), (MISSING, r"a Python without module pyarrow")]
)
def test_executors_that_run_another_python_are_told_of(
    text: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    runs = SimpleNamespace(pythonExec="/opt/python")
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", runs)
    found = users_error(JavaError(text))
    assert isinstance(found, ConfigurationError)  # which no restart helps
    ours = re.escape(f"{sys.executable}, Python {sys.version_info[0]}.{sys.version_info[1]}: have PYSPARK_PYTHON")
    assert re.match(rf"Spark's executors run '/opt/python', {what}, and this program runs {ours}", str(found))
    assert isinstance(found.__cause__, JavaError)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    assert re.match(rf"Spark's executors run {what}, and", str(users_error(JavaError(text))))


class _TaskContext:
    """As in a task of Spark's; None: outside of one."""

    now: ClassVar[Any] = None

    @classmethod
    def get(cls) -> Any:
        return cls.now


def test_a_version_that_does_not_tell_the_micro_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    monkeypatch.setattr(pyspark, "TaskContext", _TaskContext)
    assert _batch_number() == 0  # no task: nothing is processed
    for properties, number in (({"streaming.sql.batchId": "0"}, 0), ({"streaming.sql.batchId": "7"}, 7)):
        monkeypatch.setattr(_TaskContext, "now", SimpleNamespace(getLocalProperty=properties.get))
        assert _batch_number() == number
    monkeypatch.setattr(_TaskContext, "now", SimpleNamespace(getLocalProperty={}.get))
    with pytest.raises(RuntimeError, match=r"number of the micro-batch, as property 'streaming\.sql\.batchId'"):
        _batch_number()


def test_only_what_is_raised_anyway_is_kept_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("py4j.clientserver")
    level, problem = logger.level, ValueError("ours")
    with _told_once(lambda: problem):
        for error in (problem, ValueError("other")):
            logger.error("There was an exception", exc_info=error)
        logger.warning("something else")
        assert logger.level == level
    assert [record.exc_info and str(record.exc_info[1]) for record in caplog.records] == ["other", None]
    assert logger.filters == []


def test_what_is_not_sparks_stays_as_it_is() -> None:
    mine = ValueError("mine")
    assert users_error(mine) is mine
