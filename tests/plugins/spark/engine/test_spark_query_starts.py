"""Queries that Spark cannot start at once, as its Python processes take too long. No session is made."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from sluiceway.errors import JobCancelledError

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

from sluiceway_spark.structured.streaming_query import StreamQuery

LATE = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query(StreamQuery):
    """Query whose attempts end as they are told to."""

    def __init__(self, *attempts: str | bool, batches: int = 0) -> None:
        self.attempts = list(attempts)
        self.each = batches
        self._figures = SimpleNamespace(batches=0)  # type: ignore[assignment]
        self._cancelled = threading.Event()

    def _run(self) -> bool:
        self._figures.batches += self.each  # type: ignore[misc]
        attempt = self.attempts.pop(0)
        if isinstance(attempt, bool):
            return attempt
        raise RuntimeError(attempt)


def test_a_query_is_started_again_if_a_process_took_too_long(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluiceway_spark"):
        assert Query(LATE, LATE, True).run()
    assert [record.message for record in caplog.records] == [
        "Spark has waited 10 s for a Python process to start: the query is started again"
    ] * 2


def test_that_has_an_end() -> None:
    query = Query(*[LATE] * 9)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        query.run()
    assert len(query.attempts) == 3


def test_queries_that_get_on_are_started_as_often_as_it_takes() -> None:
    assert not Query(*[LATE] * 9, False, batches=1).run()


@pytest.mark.parametrize("what", ["a function has failed", LATE], ids=["other failures", "a cancelled job"])
def test_is_not_started_again(what: str) -> None:
    query = Query(what, True)
    if what == LATE:
        query._cancelled.set()
    with pytest.raises((RuntimeError, JobCancelledError)):
        query.run()
    assert query.attempts == [True]
