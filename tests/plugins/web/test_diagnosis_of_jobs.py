"""Diagnosis of jobs that run, each with one planted cause, and of a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plugins.web.conftest import Page

HEAD = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink, GeneratorSource

def pause(value, seconds=0.002):
    time.sleep(seconds)
    return value

def work(value):
    end = time.perf_counter() + 0.0002
    while time.perf_counter() < end:
        pass
    return value


flow = sw.Pipeline("planted")
numbers = flow.source(GeneratorSource(lambda n: n)).uid("numbers")
"""

SLOW_STEP = """
numbers.rebalance().map(pause).uid("slow").rebalance().map(abs).sink(DiscardSink())
"""
SLOW_SINK = """
numbers.rebalance().map(abs).uid("abs").rebalance().for_each(pause)
"""
SKEW = """
def key(n):
    return 0 if n % 20 else n % 128
flow = sw.Pipeline("planted", parallelism=4)
numbers = flow.source(GeneratorSource(lambda n: n)).uid("numbers")
numbers.key_by(key).map(pause).uid("skewed").rebalance().sink(DiscardSink())
"""
FULL = """
numbers.rebalance().map(work).uid("one").rebalance().map(work).uid("two").rebalance().map(work).uid("three").sink(
    DiscardSink())
"""
SOURCE = """
flow = sw.Pipeline("planted")
flow.source(GeneratorSource(pause)).uid("numbers").rebalance().map(abs).sink(DiscardSink())
"""
SLOW_STORE = """
import fsspec
from fsspec.implementations.local import LocalFileSystem

class SlowStore(LocalFileSystem):
    protocol = "slow"

    def _open(self, path, mode="rb", **options):
        if "w" in mode and SLOW in path:
            time.sleep(1)
        return super()._open(path, mode, **options)

fsspec.register_implementation("slow", SlowStore)
flow = sw.Pipeline("planted")
numbers = flow.source(GeneratorSource(lambda n: n, rate=200)).uid("numbers")
numbers.key_by(lambda n: n % 100).count().uid("totals").name("totals").sink(DiscardSink())
"""
HEALTHY = """
flow = sw.Pipeline("planted")
numbers = flow.source(GeneratorSource(lambda n: n, rate=50)).uid("numbers")
numbers.rebalance().map(abs).key_by(lambda n: n % 10).count().sink(DiscardSink())
"""


def finding(answer: Any) -> tuple[str, str]:
    first = answer["slow"][0]
    return first["kind"], first["text"]


@pytest.mark.parametrize(
    ("program", "workers", "kind", "text"),
    [
        pytest.param(SLOW_STEP, 2, "busy-task", "'map(pause)'", marks=pytest.mark.slow),
        (SLOW_STEP, 0, "busy-task", "'map(pause)'"),
        (SLOW_SINK, 2, "busy-task", "'sink(CallbackSink)'"),
        (SKEW, 2, "skew", "the keys are skewed"),
        (FULL, 0, "full-process", "its tasks take turns"),
        (SOURCE, 2, "busy-source", "'source(GeneratorSource)'"),
    ],
    ids=["slow step", "slow step in one process", "slow sink", "skewed key", "full process", "slow source"],
)
def test_a_planted_cause_is_named(
    show: Callable[..., Page], program: str, workers: int, kind: str, text: str
) -> None:
    # A batch of pauses is one call, and a worker gives no stacks before its end: of 2048, that takes seconds.
    batch = ("--batch-size", "16") if kind.startswith("busy") else ()
    page = show(HEAD + program, "--workers", str(workers), *batch)
    # While the job starts, another task may be the busiest.
    answer = page.until(
        "/jobs/planted/diagnosis", lambda told: finding(told)[0] == kind and text in finding(told)[1]
    )
    assert not answer["healthy"]
    # Stacks are sampled in the second after the first question.
    function = "work" if kind == "full-process" else "pause"
    answer = page.until("/jobs/planted/diagnosis", lambda told: told["slow"][0]["function"])
    assert f"of the samples are in {function} (flow.py:" in answer["summary"]
    page.end()


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ("-0-0.state", "Writing the state, "),
        pytest.param("metadata", "Writing the metadata takes 1", marks=pytest.mark.slow),
    ],
)
def test_a_slow_checkpoint_store_is_named(show: Callable[..., Page], tmp_path: Path, slow: str, text: str) -> None:
    program = HEAD + SLOW_STORE.replace("SLOW in", f"{slow!r} in")
    page = show(program, "--checkpoints", f"slow://{tmp_path}/kept", "--checkpoint-interval", "500ms")
    answer = page.until("/jobs/planted/diagnosis", lambda told: text in finding(told)[1])
    assert finding(answer)[0] == "slow-checkpoint"
    assert "one is due every 0.5 s: the checkpoint storage is slow. " in finding(answer)[1]
    assert not answer["healthy"]
    page.end()


def test_there_is_no_false_alarm(show: Callable[..., Page]) -> None:
    page = show(HEAD + HEALTHY, "--workers", "2")
    page.until("/jobs/planted/diagnosis", lambda told: finding(told)[0] in ("idle", "ok"))
    answers = [page.get("/jobs/planted/diagnosis") for _ in range(20)]
    assert [a for a in answers if not a["healthy"]] == []
    page.end()


FAILING = """
def fail(value):
    raise ValueError("planted")
numbers.rebalance().map(fail).uid("failing").sink(DiscardSink())
"""


def test_a_job_that_restarts_again_and_again_says_why(show: Callable[..., Page]) -> None:
    page = show(HEAD + FAILING, "--workers", "1", "--checkpoint-interval", "10s")
    # The attempts may be told a moment before their failure is.
    answer = page.until(
        "/jobs/planted/diagnosis",
        lambda told: finding(told)[0] == "restarting" and "has failed with" in finding(told)[1],
    )
    assert "'map(fail) -> sink(DiscardSink)' has failed with ValueError: planted" in finding(answer)[1]
    assert not answer["healthy"]
    assert answer["late"][0]["kind"] == "restarting"
    page.until("/jobs/planted/status", lambda told: told["status"] == "RESTARTING")
    page.until("/live/jobs?once", lambda told: "ValueError: planted" in told["jobs"][0].get("summary", ""))
    page.end()


LATE = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def events(ended):
    now = 1_700_000_000_000
    for n in range(1000):
        yield n % 2, now + n * 1000
    ended.wait()

strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
flow = sw.Pipeline("planted", parallelism=2)
events = flow.from_function(events, blocking=True)
stamped = events.key_by(lambda pair: 0).map(tuple).assign_timestamps_and_watermarks(strategy).uid("stamped")
stamped.key_by(lambda pair: pair[0]).count().sink(DiscardSink())
"""


def test_a_subtask_without_records_holds_back_event_time(show: Callable[..., Page]) -> None:
    page = show(LATE)
    told = page.until("/jobs/planted/diagnosis", lambda told: told["late"][0]["kind"] == "no-watermark")
    assert "give the watermark strategy an idleness timeout (with_idleness)" in told["late"][0]["text"]
    page.end()
