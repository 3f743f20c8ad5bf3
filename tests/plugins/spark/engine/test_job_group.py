"""Job groups and calls of contexts that are stopped by somebody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluiceway.errors import ConnectorError
from sluiceway_spark.session.application import unless_stopped
from sluiceway_spark.session.context import slots_of
from sluiceway_spark.structured.job_group import JobGroup


class Context:
    """Context whose methods fail as PySpark's do: with an AttributeError once it has no JVM any more."""

    applicationId = "app-1"
    _jvm = None

    def __init__(self) -> None:
        scala = SimpleNamespace(isStopped=lambda: False)
        self._jsc: Any = SimpleNamespace(sc=lambda: scala)
        self.works = True

    def call(self, *args: object, **options: object) -> None:
        if not self.works:
            raise AttributeError("'NoneType' object has no attribute 'sc'")

    setJobGroup = setLocalProperty = cancelJobGroup = statusTracker = call  # Spark's names


def test_a_context_that_was_stopped_hides_no_error_of_the_job() -> None:
    context = Context()
    group = JobGroup(SimpleNamespace(sparkContext=context), "text")

    def stopped() -> None:
        with group:
            context.works, context._jsc = False, None
            assert group.tasks() == (0, 0, 0)
            group.cancel()
            raise ValueError("SparkContext was shut down")

    with pytest.raises(ValueError, match="SparkContext was shut down"):
        stopped()


def test_other_errors_of_a_context_are_raised() -> None:
    context = Context()
    group = JobGroup(SimpleNamespace(sparkContext=context), "text")
    context.works = False
    with pytest.raises(AttributeError):
        group.cancel()


def test_calls_of_a_context_that_is_stopped_meanwhile_say_so() -> None:
    context = Context()
    session = SimpleNamespace(sparkContext=context)

    def begun(jsc: Any) -> None:
        with unless_stopped(session, "job 'sums'"):
            context._jsc = jsc
            slots_of(context)

    said = "job 'sums' ended with Spark's application: Spark's context was stopped"
    with pytest.raises(ConnectorError, match=said):
        begun(None)
    with pytest.raises(AttributeError, match="maxNumConcurrentTasks"):
        begun(Context()._jsc)
