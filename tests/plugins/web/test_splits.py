"""Event time of the splits of a job that runs: one that is planted to be late is named, of a healthy job none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from plugins.web.conftest import Page

from sluiceway.monitoring.split_diagnosis import SourceSplits
from sluiceway_web import _answers as a

PROGRAM = """
import time
from dataclasses import dataclass

import sluiceway as sw
from sluiceway.connector import Boundedness, Reader, Source, Wait
from sluiceway.connector.lib import DiscardSink
from sluiceway.connector.lib.static_enumerator import StaticSplitEnumerator


@dataclass(frozen=True)
class Partition:
    index: int

    @property
    def split_id(self):
        return f"events-{self.index}"


class Partitions(Source):
    boundedness = Boundedness.UNBOUNDED

    def create_enumerator(self, context, restored=None):
        return StaticSplitEnumerator(context, [Partition(n) for n in range(200)])

    def create_reader(self, context):
        return Records(context)


class Records(Reader):
    def __init__(self, context):
        self._context, self._splits, self._turn, self._round, self._current = context, [], 0, 0, None

    def start(self):
        self._context.request_split()

    def add_splits(self, splits):
        self._splits += splits

    def no_more_splits(self):
        pass

    @property
    def current_split_id(self):
        return self._current

    def poll(self, limit):
        if not self._splits:
            return Wait()
        if self._turn == len(self._splits):
            self._turn, self._round = 0, self._round + 1
            return Wait(until=time.monotonic() + 0.1)
        split = self._splits[self._turn]
        self._turn += 1
        stamp = time.time_ns() // 1_000_000
        if split.index == STALLED:
            if self._round:
                return Wait(until=time.monotonic() + 0.001)
            stamp -= 3_600_000
        self._current = split.split_id
        return [(split.index, stamp)]

    def snapshot(self):
        return self._splits

    def close(self):
        pass


strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
flow = sw.Pipeline("planted", parallelism=2)
events = flow.source(Partitions(), watermark_strategy=strategy).uid("events")
events.key_by(lambda pair: pair[0]).count().sink(DiscardSink())
"""


def late(answer: Any) -> Any:
    return answer["late"][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_split_that_stalls_among_many_is_named(show: Callable[..., Page], workers: int) -> None:
    page = show(PROGRAM.replace("STALLED", "73"), "--workers", str(workers))
    told = page.until("/jobs/planted/diagnosis", lambda told: late(told)["kind"] == "held-back")
    assert late(told)["split"] == "events-73"
    assert "by split 'events-73' of 'source(Partitions)' (subtask 2)" in late(told)["text"]
    assert not told["healthy"]
    [source, *_] = page.get("/jobs/planted")["vertices"]
    path = f"/jobs/planted/vertices/{source['id']}"
    splits = msgspec.convert(page.get(f"{path}/splits"), SourceSplits)
    assert (splits.splits, splits.idle, splits.without_watermark, len(splits.shown)) == (200, 0, 0, 20)
    assert splits.shown[0].split == "events-73"
    marks = msgspec.convert(page.get(f"{path}/watermarks"), list[a.WatermarkMetric])
    assert [m.splits.splits for m in marks if m.splits is not None] == [100, 100]
    page.end()


IDLE = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def events(ended):
    yield from ((n, 1_700_000_000_000 + n) for n in range(100))
    ended.wait()

strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
flow = sw.Pipeline("planted")
read = flow.from_function(events, blocking=True, watermark_strategy=strategy.with_idleness("1s")).name("events")
read.key_by(lambda pair: pair[0]).count().sink(DiscardSink())
"""


def test_an_idle_source_is_named_and_is_no_alarm(show: Callable[..., Page]) -> None:
    page = show(IDLE)
    told = page.until("/jobs/planted/diagnosis", lambda told: late(told)["kind"] == "idle-source")
    assert late(told)["text"].startswith("Event time does not advance. The only split of 'events', ")
    assert told["slow"][0]["kind"] == "idle"
    assert told["healthy"]
    page.end()


def test_splits_that_go_on_raise_no_alarm(show: Callable[..., Page]) -> None:
    page = show(PROGRAM.replace("STALLED", "-1"))
    page.until("/jobs/planted/diagnosis", lambda told: late(told)["kind"] == "ok")
    assert [late(page.get("/jobs/planted/diagnosis"))["kind"] for _ in range(20)] == ["ok"] * 20
    page.end()
