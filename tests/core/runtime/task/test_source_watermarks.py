"""Watermarks per split at a source."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Element, Watermark, WatermarkStatus
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.runtime.task.source_watermarks import SourceTime

ACTIVE, IDLE = WatermarkStatus(True), WatermarkStatus(False)


def bounded(ms: int = 0) -> WatermarkStrategy[Any]:
    return WatermarkStrategy.for_bounded_out_of_orderness(ms).with_timestamp_assigner(lambda v: v)


class Rig:
    """A SourceTime with a clock, and what it gave out."""

    def __init__(
        self, strategy: WatermarkStrategy[Any], *splits: str, interval_ms: int = 0, bounded: bool = False
    ) -> None:
        self.clock = VirtualClock()
        self.backpressured_s = 0.0
        self.waiting: Collection[str] = ()
        self.out: list[Element] = []
        settings = Settings(auto_watermark_interval_ms=interval_ms, batch_size=10)
        self.time = SourceTime(
            strategy,
            "src",
            self.clock,
            settings,
            lambda: self.backpressured_s,
            lambda: self.waiting,
            bounded=bounded,
        )
        self.time.add(splits)

    def take(self, split: str | None, *values: Any) -> list[Element]:
        return self._gave(self.time.take(Batch(list(values)), split))

    def wait(self, ms: int) -> list[Element]:
        """The reader is dry for a time; it is polled when the time says so, and at the end."""
        before = len(self.out)
        until = self.clock.now_ms() + ms
        self.dry()
        while (at := self.time.again_at) is not None and at * 1000 <= until:
            self.clock.advance(max(0, round(at * 1000) - self.clock.now_ms()))
            self.dry()
        self.clock.advance(until - self.clock.now_ms())
        self.dry()
        return self.out[before:]

    def remove(self, *splits: str) -> list[Element]:
        return self._gave(self.time.remove(splits))

    def dry(self) -> list[Element]:
        return self._gave(self.time.dry())

    def _gave(self, elements: list[Element]) -> list[Element]:
        self.out += elements
        return elements


def test_the_watermark_is_the_lowest_of_all_splits() -> None:
    rig = Rig(bounded(), "a", "b")
    assert rig.take("a", 10) == [Batch([10], [10])]
    assert rig.take("b", 5) == [Batch([5], [5]), Watermark(4)]
    assert rig.take("a", 20) == [Batch([20], [20])]
    assert rig.take("b", 15) == [Batch([15], [15]), Watermark(14)]


def test_a_split_counts_before_its_first_record() -> None:
    rig = Rig(bounded(), "a")
    assert rig.take("a", 10)[1:] == [Watermark(9)]
    rig.time.add(["b"])
    assert rig.take("a", 20)[1:] == []
    assert rig.take("b", 15)[1:] == [Watermark(14)]


def test_a_split_that_is_read_holds_nobody_back() -> None:
    rig = Rig(bounded(), "a", "b")
    rig.take("a", 10)
    rig.take("b", 5)
    assert rig.remove("b") == [Watermark(9)]
    assert rig.remove("a") == []
    assert rig.dry() == []


def test_a_split_that_ends_before_its_generator_was_asked_does_not_lose_its_watermark() -> None:
    rig = Rig(bounded(), "a", interval_ms=200)
    assert rig.take("a", 10) == [Batch([10], [10])]
    assert rig.remove("a") == [Watermark(9)]
    rig.time.add(["b"])
    rig.take("b", 20)
    assert rig.remove("b") == [Watermark(19)]
    assert rig.wait(1000) == []


def test_between_two_splits_of_a_bounded_source_time_stands_still() -> None:
    rig = Rig(bounded(), "a", interval_ms=200, bounded=True)
    rig.take("a", 10)
    assert rig.remove("a") == []
    assert rig.wait(1000) == []
    rig.time.add(["b"])
    rig.take("b", 5)
    assert rig.wait(1000) == [Watermark(4)]
    rig.remove("b")
    assert rig.time.end() == [Watermark(MAX_WATERMARK)]


@pytest.mark.parametrize("ends", ["ab", "ba"])
def test_the_order_in_which_splits_end_makes_no_difference(ends: str) -> None:
    rig = Rig(bounded(), "a", "b", interval_ms=200)
    rig.take("a", 10)
    rig.take("b", 30)
    for split in ends:
        rig.remove(split)
    assert rig.time.watermark == 29


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_split_that_ends_beside_an_idle_one_does_not_lose_its_watermark(ends_first: bool) -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b", interval_ms=200)
    rig.take("a", 10)
    rig.wait(20)
    rig.take("b", 30)
    if ends_first:
        assert rig.remove("b") == []
        assert rig.wait(100) == [Watermark(9), Watermark(29), IDLE]
    else:
        rig.wait(90)
        assert rig.remove("b") == [Watermark(29), IDLE]
    assert rig.take("a", 20) == [ACTIVE, Batch([20], [20])]


def test_a_split_that_ends_gives_nothing_away_while_another_has_to_be_read() -> None:
    rig = Rig(bounded(), "a", "b", interval_ms=200)
    rig.take("a", 10)
    assert rig.remove("a") == []
    rig.take("b", 5)
    assert rig.remove("b") == [Watermark(9)]


def test_a_split_that_ended_in_another_process_does_not_lose_its_watermark() -> None:
    before = Rig(bounded(), "a", "b", interval_ms=200)
    before.take("a", 10)
    before.take("b", 20)
    after = Rig(bounded(), "b", interval_ms=200)
    after.time.go_on(before.time.kept())
    assert after.remove("b") == [Watermark(19)]
    last = Rig(bounded(), interval_ms=200)
    last.time.go_on(before.time.kept())
    assert last.dry() == [Watermark(19)]


def test_silence_in_another_process_counts() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    rig.take("a", 10)
    rig.wait(60)
    other = Rig(bounded().with_idleness(100), "a", "b")
    other.time.go_on(rig.time.kept())
    other.take("b", 30)
    assert other.wait(39) == []
    assert other.wait(1) == [Watermark(29)]


def test_a_reader_that_does_not_say_goes_on_with_its_one_generator() -> None:
    rig = Rig(bounded(), interval_ms=200)
    rig.take(None, 10)
    other = Rig(bounded(), interval_ms=200)
    other.time.go_on(rig.time.kept())
    other.take(None, 3)
    assert other.wait(200) == [Watermark(9)]


def test_what_an_earlier_version_has_kept_is_understood() -> None:
    before = Rig(bounded(), "a")
    before.take("a", 10)
    after = Rig(bounded(), "a")
    after.time.go_on(before.time.kept()[:4])
    assert after.time.watermark == 9
    assert after.take("a", 20)[1:] == [Watermark(19)]


def test_a_new_split_that_begins_earlier_does_not_turn_time_back() -> None:
    rig = Rig(bounded(), "a")
    rig.take("a", 100)
    rig.time.remove(["a"])
    rig.time.add(["b"])
    assert rig.take("b", 50) == [Batch([50], [50])]
    assert rig.take("b", 150)[1:] == [Watermark(149)]


def test_a_reader_that_does_not_say_has_one_generator_for_all() -> None:
    rig = Rig(bounded(), "a", "b")
    assert rig.take(None, 10)[1:] == [Watermark(9)]
    rig.time.remove(["a", "b"])
    rig.time.add(["c"])
    assert rig.take(None, 20)[1:] == [Watermark(19)]


def test_a_split_that_nobody_announced_counts_from_its_first_record() -> None:
    rig = Rig(bounded())
    assert rig.take("a", 10)[1:] == [Watermark(9)]


def test_generators_are_asked_at_the_interval_and_after_a_full_batch() -> None:
    rig = Rig(bounded(), "a", interval_ms=200)
    rig.take("a", 5)
    assert rig.wait(199) == []
    assert rig.wait(1) == [Watermark(4)]
    rig.take("a", *range(20, 29))
    assert rig.take("a", 29)[1:] == [Watermark(28)]
    rig.take("a", 40)
    rig.clock.advance(200)
    assert rig.take("a", 41)[1:] == [Watermark(40)]


def test_the_end_is_the_end_of_time() -> None:
    rig = Rig(bounded().with_idleness(10), "a")
    rig.wait(10)
    assert rig.time.end() == [ACTIVE, Watermark(MAX_WATERMARK)]
    assert rig.time.watermark == MAX_WATERMARK


# ---- idleness ----------------------------------------------------------------------------------------------


def test_an_idle_split_does_not_count_until_it_gives_a_record() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    rig.take("b", 5)
    rig.take("a", 10)
    rig.wait(50)
    rig.take("a", 20)
    assert rig.wait(49) == []
    assert rig.wait(1) == [Watermark(19)]
    assert rig.take("b", 7) == [Batch([7], [7])]
    assert rig.take("a", 30)[1:] == []
    assert rig.take("b", 25)[1:] == [Watermark(24)]


def test_a_silent_split_of_a_busy_reader_becomes_idle() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    for n in range(1, 10):
        rig.clock.advance(10)
        assert rig.take("a", n)[1:] == []
    rig.clock.advance(10)
    assert rig.take("a", 10)[1:] == [Watermark(9)]


def test_the_reader_is_idle_when_all_its_splits_are() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    rig.take("a", 10)
    rig.wait(30)
    rig.take("b", 5)
    assert rig.wait(100) == [IDLE]
    assert rig.time.active is False
    assert rig.take("b", 6) == [ACTIVE, Batch([6], [6]), Watermark(5)]


def test_what_splits_have_heard_of_is_said_before_they_are_idle() -> None:
    rig = Rig(bounded().with_idleness(100), "a", interval_ms=1000)
    rig.take("a", 10)
    assert rig.wait(100) == [Watermark(9), IDLE]


def test_a_new_split_makes_an_idle_reader_active() -> None:
    rig = Rig(bounded().with_idleness(100), "a")
    assert rig.wait(100) == [IDLE]
    rig.time.add(["b"])
    assert rig.dry() == [ACTIVE]


def test_a_reader_that_has_no_split_for_long_is_idle() -> None:
    rig = Rig(bounded().with_idleness(100))
    assert rig.wait(99) == []
    assert rig.wait(1) == [IDLE]
    rig.time.add(["a"])
    assert rig.take("a", 3) == [ACTIVE, Batch([3], [3]), Watermark(2)]
    rig.wait(50)
    rig.time.remove(["a"])
    assert rig.wait(99) == []
    assert rig.wait(1) == [IDLE]


@pytest.mark.parametrize(("entries", "left_ms"), [(6, 40), (5, 100)])
def test_a_reader_without_splits_stays_on_its_way_to_idleness_in_another_process(
    entries: int, left_ms: int
) -> None:
    """Five entries are those of an earlier version: the time begins anew."""
    before = Rig(bounded().with_idleness(100))
    before.wait(60)
    after = Rig(bounded().with_idleness(100))
    after.time.go_on(before.time.kept()[:entries])
    assert after.wait(left_ms - 1) == []
    assert after.wait(1) == [IDLE]


def test_time_for_which_output_was_blocked_is_not_silence() -> None:
    rig = Rig(bounded().with_idleness(100), "a")
    rig.wait(60)
    rig.clock.advance(1000)
    rig.backpressured_s += 1.0
    assert rig.wait(39) == []
    assert rig.wait(1) == [IDLE]


def test_silence_that_others_know_of_counts() -> None:
    rig = Rig(bounded().with_idleness(100), "a")
    rig.take("a", 10)
    rig.time.were_silent(["a", "another"], 80)
    assert IDLE not in rig.wait(19)
    assert rig.wait(1) == [IDLE]


def test_a_split_that_waits_for_its_turn_is_not_idle() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    rig.waiting = ["b"]
    rig.take("a", 10)
    rig.clock.advance(150)
    assert rig.take("a", 20)[1:] == []
    rig.waiting = []
    assert rig.take("a", 30)[1:] == []
    rig.clock.advance(100)
    assert rig.take("a", 40)[1:] == [Watermark(39)]


def test_time_does_not_pass_for_a_paused_split() -> None:
    rig = Rig(bounded().with_idleness(100), "a", "b")
    rig.take("a", 1)
    rig.take("b", 50)
    rig.time.pause(frozenset("b"))
    rig.wait(99)
    rig.take("a", 2)
    rig.wait(99)
    assert rig.time.watermark == 1
    rig.take("a", 100)
    assert rig.time.watermark == 49
    rig.time.pause(frozenset())
    assert rig.wait(99) == []
    rig.take("a", 101)
    assert rig.wait(1) == [Watermark(100)]


def test_splits_ahead_of_a_limit() -> None:
    rig = Rig(bounded(), "a", "b")
    rig.take("a", 11)
    rig.take("b", 12)
    assert rig.time.ahead_of(10) == {"b"}
    assert rig.time.split_ids() == {"a", "b"}
    assert not rig.time.one_for_all


# ---- watermarks among the records --------------------------------------------------------------------------


class Each(sw.WatermarkGenerator[int]):
    """Every record is a watermark."""

    def on_event(self, value: int, timestamp: int, output: sw.WatermarkOutput) -> None:
        output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        """Nothing."""


def test_a_batch_is_cut_where_the_lowest_of_all_rises() -> None:
    rig = Rig(WatermarkStrategy.for_generator(Each).with_timestamp_assigner(lambda v: v), "a", "b")
    assert rig.take("a", 3, 5) == [Batch([3, 5], [3, 5])]
    assert rig.take("b", 1, 4, 4, 9) == [
        Batch([1], [1]),
        Watermark(1),
        Batch([4], [4]),
        Watermark(4),
        Batch([4, 9], [4, 9]),
        Watermark(5),
    ]


def test_a_generator_that_calls_itself_idle_is_believed() -> None:
    class Sleepy(Each):
        def on_event(self, value: int, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.mark_idle()

    strategy = WatermarkStrategy.for_generator(Sleepy).with_timestamp_assigner(lambda v: v)
    rig = Rig(strategy, "a", interval_ms=1000)
    assert rig.take("a", 3) == [Batch([3], [3]), IDLE]
    assert rig.take("a", 4) == [ACTIVE, Batch([4], [4]), IDLE]


def test_a_batch_is_not_held_by_splits_that_are_idle() -> None:
    strategy = WatermarkStrategy.for_generator(Each).with_timestamp_assigner(lambda v: v).with_idleness(100)
    rig = Rig(strategy, "a", "b")
    rig.wait(50)
    rig.take("a", 1)
    rig.wait(50)
    assert rig.take("a", 3, 5) == [Batch([3], [3]), Watermark(3), Batch([5], [5]), Watermark(5)]


class Wall(sw.WatermarkGenerator[int]):
    """Goes by how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def on_event(self, value: int, timestamp: int, output: sw.WatermarkOutput) -> None:
        """Nothing."""

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        self.asked += 1
        output.emit_watermark(self.asked)


def test_generators_of_idle_splits_are_not_asked() -> None:
    strategy = WatermarkStrategy.for_generator(Wall).with_timestamp_assigner(lambda v: v)
    rig = Rig(strategy.with_idleness(150), "a", interval_ms=100)
    assert rig.wait(1000) == [Watermark(1), Watermark(2), IDLE]
    rig.take("a", 1)
    assert rig.wait(100) == [Watermark(3)]


def test_a_generator_with_a_will_of_its_own_is_asked_while_the_reader_is_dry() -> None:
    rig = Rig(WatermarkStrategy.for_generator(Wall), "a", "b", interval_ms=100)
    assert rig.wait(250) == [Watermark(1), Watermark(2)]


# ---- whatever comes ----------------------------------------------------------------------------------------

names = st.sampled_from("abc")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("take"), names, st.lists(st.integers(0, 100), min_size=1, max_size=4)),
        st.tuples(st.just("add"), names),
        st.tuples(st.just("remove"), names),
        st.tuples(st.just("wait"), st.integers(1, 150)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("interval_ms", [0, 70])
@example(
    actions=[("take", "a", [0, 1]), ("take", "b", [0]), ("wait", 1), ("take", "a", [0]), ("wait", 2)],
    bound=0,
    idleness=2,
)
@given(actions=actions, bound=st.integers(0, 30), idleness=st.none() | st.integers(1, 200))
def test_it_is_what_a_plain_model_says(
    interval_ms: int, actions: list[Any], bound: int, idleness: int | None
) -> None:
    strategy = bounded(bound) if idleness is None else bounded(bound).with_idleness(idleness)
    rig = Rig(strategy, interval_ms=interval_ms)
    highest: dict[str, int] = {}
    heard: dict[str, int] = {}
    ended: list[int] = []
    reached = MIN_WATERMARK

    def awake_at(now: int) -> list[str]:
        return [n for n in highest if idleness is None or now - heard[n] < idleness]

    def allowed_at(now: int) -> int:
        return min((highest[n] for n in awake_at(now)), default=max(ended, default=MIN_WATERMARK))

    for action, *args in actions:
        now = rig.clock.now_ms()
        name = args[0]
        if action == "take":
            rig.take(name, *args[1])
            highest[name] = max(highest.get(name, MIN_WATERMARK), *(v - bound - 1 for v in args[1]))
            heard[name] = now
        elif action == "add" and name not in highest:
            rig.time.add([name])
            highest[name] = MIN_WATERMARK
            heard[name] = now
        elif action == "remove" and name in highest:
            rig.remove(name)
            ended.append(highest.pop(name))
            del heard[name]
        elif action == "wait":
            rig.wait(name)
            # Splits become idle one after the other: in between, those that are awake still may allow more.
            reached = max(reached, *(allowed_at(passed) for passed in range(now, now + name)))
            now += name
        awake, allowed = awake_at(now), allowed_at(now)
        reached = max(reached, allowed)
        assert rig.time.watermark <= reached
        if idleness is None and (not interval_ms or (action == "wait" and name >= interval_ms)):
            assert rig.time.watermark >= allowed
        if not highest or (not awake and action == "wait"):
            # Nothing of what ended is lost, however often the generators were asked, and whatever ended first.
            assert rig.time.watermark >= max(ended, default=MIN_WATERMARK)
        if highest and action == "wait":
            assert rig.time.active == bool(awake)
    marks = [e.timestamp for e in rig.out if isinstance(e, Watermark)]
    assert marks == sorted(set(marks))
    statuses = [e for e in rig.out if isinstance(e, WatermarkStatus)]
    assert statuses == [IDLE if n % 2 == 0 else ACTIVE for n in range(len(statuses))]


def test_splits_are_told_by_name_a_few_of_many() -> None:
    """The number of splits makes what is told of them no larger; those that hold back come first."""
    names = [f"p-{n:03}" for n in range(1000)]
    rig = Rig(bounded().with_idleness(5000), *names)
    assert rig.time.split_times() is not None
    for n, name in enumerate(names[1:], 1):
        rig.take(name, 100_000 + n)
    rig.take("p-500", 7)
    rig.clock.advance(1000)
    found = rig.time.split_times()
    assert found is not None
    assert (found.splits, found.idle, found.without_watermark) == (1000, 0, 1)
    assert (found.highest, found.median) == (100_998, 100_499)
    assert [(s.split, s.watermark) for s in found.shown[:3]] == [
        ("p-000", None),
        ("p-001", 100_000),
        ("p-002", 100_001),
    ]
    assert [s.silent_s for s in found.shown] == [1.0] * len(found.shown)
    rig.clock.advance(3000)
    rig.take("p-007", 200_000)
    rig.wait(2000)
    found = rig.time.split_times()
    assert found is not None
    assert (found.splits, found.idle, found.without_watermark, found.last_record_s) == (1000, 999, 0, 2.0)
    assert [(s.split, s.idle, s.silent_s) for s in found.shown[:2]] == [
        ("p-007", False, 2.0),
        ("p-000", True, 6.0),
    ]
    assert len(found.shown) == 16
    rig.time.remove(names)
    assert rig.time.split_times() is None


def test_a_long_name_of_a_split_keeps_its_end() -> None:
    rig = Rig(bounded(), "x" * 500 + "part-7")
    [split] = rig.time.split_times().shown  # type: ignore[union-attr]
    assert len(split.split) == 200
    assert split.split.endswith("part-7")


def test_a_reader_that_does_not_say_has_no_splits() -> None:
    rig = Rig(bounded())
    rig.take(None, 5)
    assert rig.time.split_times() is None
