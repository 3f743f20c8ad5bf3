"""Records of ended jobs, and the monitor that reads them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sluiceway.errors import SluicewayError
from sluiceway.metrics import JobMetrics, SplitTime, SplitTimes, SubtaskMetrics
from sluiceway.monitoring.history_monitor import MOST_JOBS, HistoryMonitor
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, JobInfo
from sluiceway.monitoring.job_history import EndedJob, JobHistory, JobHistoryError


def ended(job: str, at: int = 2, **user: float) -> EndedJob:
    task = SubtaskMetrics("map", 0, "finished", 3, 3, user=user, operators={"map": user})
    metrics = JobMetrics("words", "finished", 1.0, 3, 3, (task,))
    info = JobInfo(job, "words", "finished", 1, at, 0, 3, 3, "", 0, [], {"finished": 1})
    checkpoint = CheckpointInfo(1, "completed", 1, 2, 3, "", "", [])
    return EndedJob(info, JobDescription(metrics=metrics), [checkpoint])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = JobHistory(tmp_path / "a" / "b")
    assert history.files() == []
    file = history.add(ended("words 1"))
    assert file.parent == tmp_path / "a" / "b"
    assert file.stat().st_mode & 0o077 == 0
    assert history.has("words 1")
    assert history.find("words 1") == ended("words 1")
    history.forget("words 1")
    history.forget("words 1")
    assert not history.has("words 1")


def test_numbers_that_json_does_not_have_are_left_out(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    history.add(ended("a", lag=math.nan, most=math.inf, records=1))
    assert history.find("a") == ended("a", records=1)


def test_a_failure_with_half_a_surrogate_pair_is_told_with_an_escape(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    one = ended("a")
    history.add(msgspec.structs.replace(one, info=msgspec.structs.replace(one.info, failure="no \udcff")))
    assert history.find("a").info.failure == "no \\udcff"


def test_a_time_without_records_that_has_no_end_is_that_of_the_job(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    one = ended("a")
    assert one.description.metrics is not None
    [task] = one.description.metrics.subtasks
    splits = SplitTimes(1, 0, 1, None, None, math.inf, (SplitTime("a.txt", None, False, math.inf),))
    metrics = replace(
        one.description.metrics,
        subtasks=(replace(task, splits=splits),),
        latency_ms={"out": {"p50": math.nan, "p99": 2.0}},
    )
    history.add(msgspec.structs.replace(one, description=JobDescription(metrics=metrics)))
    found = history.find("a").description.metrics
    assert found is not None
    assert found.latency_ms == {"out": {"p99": 2.0}}
    assert found.subtasks[0].splits is not None
    assert found.subtasks[0].splits.last_record_s == found.subtasks[0].splits.shown[0].silent_s == 1.0


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-2], "no record of a job"),
        (lambda data: b"", "no record of a job"),
        (lambda data: b"[" * 100_000, "no record of a job"),
        (lambda data: b"\xff\xfe", "no record of a job"),
        (lambda data: data.replace(b'"version":1', b'"version":7'), "is of version 7"),
        (lambda data: data.replace(b'"restarts":0', b'"restarts":"x"', 1), "no record of a job"),
    ],
)
def test_damage_is_told_with_the_file(tmp_path: Path, damage: Callable[[bytes], bytes], told: str) -> None:
    history = JobHistory(tmp_path)
    file = history.add(ended("a"))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(JobHistoryError, match=told) as caught:
        history.find("a")
    assert str(file) in str(caught.value)
    monitor = HistoryMonitor(tmp_path)
    history.add(ended("b"))
    cluster = monitor.cluster()
    assert [job.job for job in cluster.jobs] == ["b"]
    assert told in cluster.problems[0]


def test_one_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    file = history.add(ended("a"))
    os.truncate(file, 65 * 2**20)
    with pytest.raises(JobHistoryError, match="larger than 64 MiB"):
        history.find("a")


def test_a_monitor_tells_of_new_records_and_forgets_removed_ones(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    monitor = HistoryMonitor(tmp_path)
    assert monitor.cluster().jobs == []
    with pytest.raises(SluicewayError, match="there is no record of job 'a'"):
        monitor.describe("a")
    history.add(ended("b", at=5))
    history.add(ended("a", at=3))
    (tmp_path / "other.txt").write_text("not ours")
    assert monitor.describe("a").metrics is not None
    assert [job.job for job in monitor.cluster(figures=True).jobs] == ["a", "b"]
    assert monitor.checkpoints("b")[0].checkpoint == 1
    history.forget("a")
    assert [job.job for job in monitor.cluster().jobs] == ["b"]
    for change in (monitor.cancel, monitor.stop, monitor.savepoint):
        with pytest.raises(SluicewayError, match="has ended already"):
            change("b")
    with pytest.raises(SluicewayError, match="has ended already"):
        monitor.sample_stacks("b", 1, 1)


def test_of_many_records_the_newest_are_told(tmp_path: Path) -> None:
    history = JobHistory(tmp_path)
    one = history.add(ended("0")).read_bytes()
    for number in range(1, MOST_JOBS + 1):
        file = tmp_path / f"{number}.job.json"
        file.write_bytes(one.replace(b'"job":"0"', b'"job":"%d"' % number, 1))
        os.utime(file, (number, number))
    os.utime(tmp_path / "0.job.json", (0, 0))
    jobs = {job.job for job in HistoryMonitor(tmp_path).cluster().jobs}
    assert len(jobs) == MOST_JOBS
    assert "0" not in jobs


def test_a_job_store_has_its_records_inside(tmp_path: Path) -> None:
    JobHistory(tmp_path / "history").add(ended("a"))
    assert [job.job for job in HistoryMonitor(tmp_path).cluster().jobs] == ["a"]


def test_a_record_is_json_for_other_programs(tmp_path: Path) -> None:
    told = msgspec.json.decode(JobHistory(tmp_path).add(ended("a")).read_bytes())
    assert (told["info"]["status"], told["description"]["metrics"]["records_in"]) == ("finished", 3)
