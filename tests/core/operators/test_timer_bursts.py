"""Snapshots that are taken while timers are firing: each timer fires once, whatever comes between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.elements import MIN_WATERMARK, Watermark
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.operators import keyed_timers as timed
from sluiceway.operators.keyed_timers import DUE, TIMERS, TimedKeyedOperator, timers_in
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.state import KeyedSnapshot
from sluiceway.testing import OperatorHarness
from sluiceway.testing.operators import _Subtask
from sluiceway.windows import CountTrigger, EventTimeSessionWindows, PurgingTrigger, TumblingEventTimeWindows

KEYS = "abcdefg"
Record = tuple[str, int]


class Ring(sw.KeyedProcessFunction[str, Record, Any]):
    """A timer for each record, and one more for each that has fired by 20; says how far event time has come."""

    def process_element(self, value: Record, ctx: sw.KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value[1])
        return ()

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        timers = ctx.timer_service()
        if timestamp <= 20:
            timers.register_event_time_timer(timestamp + 7)
        yield ctx.get_current_key(), timestamp, timers.current_watermark()


@pytest.fixture(autouse=True)
def _small_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "BURST", 2)


def harness(steps: Any = None, **options: Any) -> OperatorHarness:
    return OperatorHarness(steps or (lambda s: s.key_by(lambda v: v[0]).process(Ring())), **options)


def operators_of(h: OperatorHarness) -> list[TimedKeyedOperator]:
    return [subtask.operators[-1] for subtask in h._subtasks]  # type: ignore[misc]


def fill(h: OperatorHarness) -> None:
    for n in range(3):
        h.process_batch([(key, n * 10) for key in KEYS], timestamps=[n * 10] * len(KEYS))


def part_of(h: OperatorHarness, watermark: int, turns: int) -> None:
    """Begin to fire, and do some parts of it."""
    for operator in operators_of(h):
        operator.control(Watermark(watermark))
        for _ in range(turns):
            if operator.has_work:
                operator.work()


@pytest.mark.parametrize("parallelism", [(1, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("turns", [0, 1, 4, 100])
@pytest.mark.parametrize("watermark", [19, 20])
def test_timers_that_were_due_fire_before_anything_else(
    parallelism: tuple[int, int], turns: int, watermark: int
) -> None:
    with harness() as whole:
        fill(whole)
        assert sorted(whole.process_watermark(watermark))[0] == ("a", 0, watermark)
        wanted = sorted(whole.values)
    with harness(parallelism=parallelism[0]) as h:
        fill(h)
        part_of(h, watermark, turns)
        before, snapshot = list(h.values), h.snapshot()
        for operator in operators_of(h):
            while operator.has_work:
                operator.work()
        assert sorted(h.values) == wanted, "the snapshot has changed something"
    with harness(parallelism=parallelism[1], restored=snapshot) as h:
        assert sorted(before + h.values) == wanted
        assert {operator.current_watermark for operator in operators_of(h)} == {MIN_WATERMARK}
        assert not any(isinstance(element, Watermark) for element in h.elements)
        h.take()
        assert {at for _, at, _ in h.process_watermark(29)} == {20, 21, 24, 27} - {watermark}


def test_a_snapshot_of_a_burst_that_goes_on_after_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    with harness() as h:
        fill(h)
        part_of(h, 19, 1)
        records, snapshot = list(h.values), h.snapshot()
    monkeypatch.setattr(_Subtask, "settle", lambda self: None)
    turns = 0
    while True:
        with harness(restored=snapshot) as h:
            [operator] = operators_of(h)
            if not operator.has_work:
                break
            operator.work()
            turns += 1
            records, snapshot = records + h.values, h.snapshot()
    assert turns > 3
    monkeypatch.undo()
    with harness() as whole:
        fill(whole)
        assert sorted(records) == sorted(whole.process_watermark(19))


def test_no_timer_fires_that_was_not_due_where_subtasks_had_other_watermarks() -> None:
    with harness(parallelism=3) as h:
        fill(h)
        late, *others = operators_of(h)
        for operator in others:
            operator.control(Watermark(15))
        late.control(Watermark(5))
        before, snapshot = list(h.values), h.snapshot()
    with harness(parallelism=1, restored=snapshot) as h:
        of_late = [key for key in KEYS if subtask_for_key_group(key_group(key, 128), 3, 128) == 0]
        assert 0 < len(of_late) < len(KEYS)
        assert h.values, "some were due for all"
        assert max(at for key, at, _ in before + h.values if key in of_late) <= 5
        fired = [record[:2] for record in before + h.values] + [r[:2] for r in h.process_watermark(19)]
    with harness() as whole:
        fill(whole)
        assert sorted(set(fired)) == sorted(r[:2] for r in whole.process_watermark(19))


def test_bursts_of_several_subtasks_go_on_up_to_the_lowest_of_their_watermarks() -> None:
    with harness(parallelism=3) as h:
        fill(h)
        late, *others = operators_of(h)
        late.control(Watermark(15))
        for operator in others:
            operator.control(Watermark(18))
        assert late.has_work
        assert any(operator.has_work for operator in others)
        snapshot = h.snapshot()
    with harness(restored=snapshot) as h:
        assert {watermark for _, _, watermark in h.values} == {15}


def test_nothing_of_a_burst_stays_in_the_state() -> None:
    with harness() as h:
        fill(h)
        part_of(h, 19, 1)
        snapshot = h.snapshot()
        tables = [meta.name for meta in snapshot.operators[0].keyed.tables]
        assert DUE.name in tables
    with harness() as h:
        fill(h)
        h.process_watermark(19)
        assert DUE.name not in [meta.name for meta in h.snapshot().operators[0].keyed.tables]
    with harness(restored=snapshot) as h:
        h.process_watermark(100)
        assert not h.snapshot().operators[0].keyed.groups


def windowed(windows: Any) -> Any:
    return lambda s: windows(s.key_by(lambda v: v[0])).process(_Contents())


class _Contents(sw.ProcessWindowFunction[str, Record, Any]):
    def process(self, key: str, ctx: Any, elements: Iterable[Record]) -> Iterator[Any]:
        yield key, sorted(at for _, at in elements)


WINDOWS = {
    "tumbling": lambda s: s.window(TumblingEventTimeWindows.of(10)),
    "with a trigger": lambda s: s.window(TumblingEventTimeWindows.of(10)).trigger(
        PurgingTrigger.of(CountTrigger.of(5))
    ),
    "with lateness": lambda s: s.window(TumblingEventTimeWindows.of(10)).allowed_lateness(5),
    "sessions": lambda s: s.window(EventTimeSessionWindows.with_gap(4)),
}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("turns", [0, 2, 5])
def test_windows_whose_timers_are_firing(windows: str, turns: int) -> None:
    steps = windowed(WINDOWS[windows])
    with harness(steps) as whole:
        fill(whole)
        whole.process_watermark(21)
        whole.process_watermark(100)
    with harness(steps) as h:
        fill(h)
        part_of(h, 21, turns)
        before, snapshot = list(h.values), h.snapshot()
    with harness(steps, parallelism=2, restored=snapshot) as h:
        h.process_watermark(100)
        assert sorted(before + h.values) == sorted(whole.values)


class Deadlines(sw.KeyedProcessFunction[str, tuple[str, int, bool], Any]):
    """Timers of both kinds."""

    def process_element(self, value: tuple[str, int, bool], ctx: sw.KeyedProcessFunction.Context) -> Iterable[Any]:
        _, at, event_time = value
        timers = ctx.timer_service()
        (timers.register_event_time_timer if event_time else timers.register_processing_time_timer)(at)
        return ()

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, ctx.time_domain() is sw.TimeDomain.EVENT_TIME


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_what_is_done_to_timers_after_a_snapshot_is_not_in_it(backend: str) -> None:
    """It is read later, by another thread."""
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    given = [("a", 10, True), ("b", 10, False), ("c", 1, True), ("c", 2, True), ("c", 3, False), ("c", -4, True)]
    steps = lambda s: s.key_by(lambda v: v[0]).process(Deadlines())  # noqa: E731
    with harness(steps, state_backend=backend, start_ms=-9) as h:
        h.process_batch(given)
        [operator] = operators_of(h)
        snapshot = operator.snapshot()
        h.process(("a", 12, True))
        fired = h.process_watermark(100) + h.advance(100)
        assert snapshot.keyed is not None
        taken = KeyedSnapshot(snapshot.keyed.tables, dict(snapshot.keyed.groups))
        snapshot.keyed.release()
        assert [meta.name for meta in operator.snapshot().keyed.tables].count(TIMERS.name) == 1  # type: ignore[union-attr]
    with harness(steps, restored=JobSnapshot((replace(snapshot, keyed=taken),)), parallelism=2, start_ms=-9) as h:
        again = h.process_watermark(100) + h.advance(100)
    assert sorted(again) == sorted(given)
    assert sorted(fired) == sorted([*given, ("a", 12, True)])


def test_timers_as_earlier_versions_have_kept_them() -> None:
    kept = [(True, 5, ()), (False, 7, (1, 2))]
    assert list(timers_in(kept)) == kept
    assert list(timers_in((True, 5, False, 7))) == [(True, 5, ()), (False, 7, ())]
    assert list(timers_in([True, 5])) == [(True, 5, ())]
    assert list(timers_in(())) == []


class Again(sw.KeyedProcessFunction[str, Record, Any]):
    """Sets a timer that would be too late, for each that fires."""

    def process_element(self, value: Record, ctx: sw.KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_processing_time_timer(value[1])
        return ()

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        ctx.timer_service().register_processing_time_timer(timestamp + 1000)
        if timestamp == 1_000:
            ctx.timer_service().delete_processing_time_timer(1_001)
        yield ctx.get_current_key(), timestamp


def test_what_waits_for_processing_time_when_the_input_ends_fires_in_parts() -> None:
    given = [(key, 1_000 + n) for n in range(2) for key in KEYS]
    with harness(lambda s: s.key_by(lambda v: v[0]).process(Again())) as h:
        h.process_batch(given)
        [operator] = operators_of(h)
        operator.finish()
        assert h.values == given[:2]
        assert operator.has_work
        operator.work()
        assert h.values == given[:4]
        while operator.has_work:
            operator.work()
        assert h.values == given[: len(KEYS)]
