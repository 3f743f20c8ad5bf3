"""The search path of processes that run many jobs."""

from __future__ import annotations

import sys

import pytest

from sluiceway.runtime.cluster.search_path import SearchPath


def test_entries_stay_as_long_as_a_job_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["own", "both"])
    search = SearchPath()
    search.use("job-1", ["a", "both", "c"])
    search.use("job-2", ["c", "d", "own", "d"])
    assert sys.path == ["own", "both", "a", "c", "d"]
    search.drop("job-1")
    search.drop("job-1")
    assert sys.path == ["own", "both", "c", "d"]
    sys.path.remove("d")
    search.drop("job-2")
    search.drop("unknown")
    assert sys.path == ["own", "both"]


def test_entries_of_jobs_that_have_ended_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["own"])
    search = SearchPath()
    for n in range(100):
        search.use(n, ["own", f"place {n}"])
        search.drop(n - 1)
    assert sys.path == ["own", "place 99"]
