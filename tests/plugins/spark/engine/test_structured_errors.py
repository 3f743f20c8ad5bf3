"""What comes out of what Spark says when a job has failed."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConnectorError
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway_spark.structured.job_group import users_error
from sluiceway_spark.structured.stages.batch_tasks import sent


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


def test_what_is_not_sparks_stays_as_it_is() -> None:
    mine = ValueError("mine")
    assert users_error(mine) is mine
