"""What becomes of timers and windows that are not due when bounded input ends: as docs/from-flink.md has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import CommittingSinkWriter, DeliveryGuarantee, Sink, Wait, WriterContext
from sluiceway.errors import StateError
from sluiceway.windows import GlobalWindows, TumblingEventTimeWindows, TumblingProcessingTimeWindows

RECORDS = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]


def results(build: Any) -> list[Any]:
    flow = sw.Pipeline()
    collected = build(flow.from_collection(RECORDS).key_by(lambda record: record[0])).collect()
    flow.run()
    return sorted(collected)


class Later(sw.KeyedProcessFunction[str, Any, Any]):
    """Sets a timer of an hour, which sets another one."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(
            timers.current_processing_time() // 3_600_000 * 3_600_000 + 7_200_000
        )

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timestamp + 3_600_000)
        yield ctx.get_current_key()


def test_timers_of_processing_time_fire_once() -> None:
    assert results(lambda keyed: keyed.process(Later())) == ["a", "b"]


def test_windows_of_processing_time_are_evaluated() -> None:
    made = results(lambda keyed: keyed.window(TumblingProcessingTimeWindows.of("1d")).sum(1))
    assert sum(total for _, total in made) == 10  # in two windows if it is midnight


def test_windows_of_event_time_are_evaluated() -> None:
    def windowed(keyed: Any) -> Any:
        strategy = sw.WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda record: record[1])
        stamped = keyed.assign_timestamps_and_watermarks(strategy).key_by(lambda record: record[0])
        return stamped.window(TumblingEventTimeWindows.of("1d")).sum(1)

    assert results(windowed) == [("a", 8), ("b", 2)]


def test_count_windows_that_are_not_full_are_dropped() -> None:
    assert results(lambda keyed: keyed.count_window(2).sum(1)) == [("a", 4)]


def test_a_trigger_for_the_end_gives_one_result_per_key() -> None:
    windows = GlobalWindows.create_with_end_of_stream_trigger()
    assert results(lambda keyed: keyed.window(windows).sum(1)) == [("a", 8), ("b", 2)]
    assert results(lambda keyed: keyed.sum(1)) == [("a", 1), ("a", 4), ("a", 8), ("b", 2)]


@pytest.mark.parametrize(("key", "hint"), [([1], r"tuple\(key\)"), ({}, "tuple"), ({1}, "frozenset")])
def test_unhashable_keys_are_refused_with_one_that_will_do(key: Any, hint: str) -> None:
    flow = sw.Pipeline()
    flow.from_collection(RECORDS).key_by(lambda record: key).sum(1).collect()
    with pytest.raises(sw.UnstableKeyError, match=hint):
        flow.run()


COMMITTED: list[int] = []


class SlowWriter(CommittingSinkWriter[int]):
    """Writer whose external system takes what was flushed when the runtime has begun to wait for it."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._awaited = threading.Event()
        self._given: list[int] = []
        self._taken: list[int] = []
        self._sending: threading.Thread | None = None

    def recover(self, committables: Sequence[Any]) -> None: ...

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        assert self.blocked() is None
        self._given += values

    def flush(self) -> None:
        if self._given and self._sending is None:
            self._sending = threading.Thread(target=self._send)
            self._sending.start()

    def _send(self) -> None:
        self._awaited.wait()
        self._taken += self._given
        self._given = []
        self._context.wake()

    def blocked(self) -> Wait | None:
        if self._sending is not None and not self._given:
            self._sending.join()
            self._sending = None
            self._awaited.clear()
        if self._sending is None:
            return None
        self._awaited.set()
        return Wait()

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        assert self._sending is None, "records are on their way"
        assert not self._given
        taken, self._taken = self._taken, []
        return [taken]

    def commit(self, committables: Sequence[Any]) -> None:
        for taken in committables:
            COMMITTED.extend(taken)

    def close(self) -> None:
        self._awaited.set()
        if self._sending is not None:
            self._sending.join()


class SlowSink(Sink[int]):
    guarantee = DeliveryGuarantee.EXACTLY_ONCE

    def create_writer(self, context: WriterContext) -> SlowWriter:
        return SlowWriter(context)


@pytest.mark.parametrize("options", [{}, {"checkpoint_interval": "1h"}, {"parallelism": 2}, {"batch_size": 1}])
def test_what_is_on_its_way_to_a_sink_is_waited_for_before_the_last_commit(options: dict[str, Any]) -> None:
    COMMITTED.clear()
    flow = sw.Pipeline("slow")
    flow.from_collection(range(10)).sink(SlowSink())
    flow.run(**options)
    assert sorted(COMMITTED) == list(range(10))


def running(flow: sw.Pipeline, pairs: sw.DataStream[tuple[str, int]]) -> sw.Collected[tuple[str, int]]:
    return pairs.key_by(lambda pair: pair[0]).sum(1).uid("sums").collect()


def ended(place: Path) -> None:
    flow = sw.Pipeline("sums")
    running(flow, flow.from_collection([("a", 1), ("b", 2)]).uid("first"))
    flow.run(checkpoints=place, checkpoint_interval="1h")


@pytest.mark.parametrize("workers", [0, 2])
def test_another_source_before_steps_that_have_ended_is_refused(workers: int, tmp_path: Path) -> None:
    ended(tmp_path)
    flow = sw.Pipeline("sums")
    running(flow, flow.from_collection([("a", 10)]).name("more").uid("second"))
    message = r"in the snapshot 'sum\(1\) -> .*' of job 'sums' has come to the end .* of 'more' \(uid second\)"
    with pytest.raises(StateError, match=message):
        flow.run(from_checkpoint=tmp_path, allow_dropped_state=True, workers=workers)


def test_a_source_that_joins_one_that_has_ended_is_refused(tmp_path: Path) -> None:
    ended(tmp_path)
    flow = sw.Pipeline("sums")
    first = flow.from_collection([("a", 1), ("b", 2)]).uid("first")
    running(flow, first.union(flow.from_collection([("a", 10)]).uid("second")))
    with pytest.raises(StateError, match=r"\(uid second\), not read to its end there"):
        flow.run(from_checkpoint=tmp_path)


def test_a_job_that_had_ended_ends_at_once_also_with_another_step(tmp_path: Path) -> None:
    ended(tmp_path)
    flow = sw.Pipeline("sums")
    sums = running(flow, flow.from_collection([("a", 1), ("b", 2)]).uid("first").map(lambda pair: pair))
    assert flow.run(from_checkpoint=tmp_path).status is sw.JobStatus.FINISHED
    assert sums == []
