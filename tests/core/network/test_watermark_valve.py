from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark, WatermarkStatus
from sluiceway.network.watermark_valve import WatermarkValve


def test_the_minimum_of_all_channels() -> None:
    valve = WatermarkValve(2)
    assert valve.watermark(0, Watermark(10)) == (None, None)
    assert valve.watermark(1, Watermark(5)) == (None, Watermark(5))
    assert valve.watermark(1, Watermark(20)) == (None, Watermark(10))
    assert valve.watermark(1, Watermark(15)) == (None, None)
    assert valve.current == 10
    assert valve.watermark(0, Watermark(20)) == (None, Watermark(20)), "a channel does not go back"


def test_an_idle_channel_does_not_hold_the_others_back() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, Watermark(10))
    assert valve.status(1, WatermarkStatus(False)) == (None, Watermark(10))
    # Back again, but behind: it counts only once it has caught up.
    assert valve.status(1, WatermarkStatus(True)) == (None, None)
    assert valve.watermark(1, Watermark(3)) == (None, None)
    assert valve.watermark(0, Watermark(12)) == (None, Watermark(12))
    assert valve.watermark(1, Watermark(12)) == (None, None)
    assert valve.watermark(0, Watermark(30)) == (None, None)
    assert valve.watermark(1, Watermark(20)) == (None, Watermark(20))


def test_a_channel_that_is_back_where_time_stands_holds_it() -> None:
    valve = WatermarkValve(2)
    for channel in (0, 1):
        valve.watermark(channel, Watermark(10))
    valve.status(1, WatermarkStatus(False))
    valve.status(1, WatermarkStatus(True))
    assert valve.watermark(0, Watermark(30)) == (None, None)
    assert valve.watermark(1, Watermark(20)) == (None, Watermark(20))


def test_all_idle_means_idle_and_one_active_means_active() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, Watermark(7))
    assert valve.status(0, WatermarkStatus(False)) == (None, None)
    assert valve.status(1, WatermarkStatus(False)) == (WatermarkStatus(False), Watermark(7))
    assert valve.status(0, WatermarkStatus(True)) == (WatermarkStatus(True), None)


def test_the_end_of_some_channels_is_no_reason_for_the_end_of_time_while_the_others_are_idle() -> None:
    valve = WatermarkValve(3)
    valve.watermark(0, Watermark(7))
    valve.watermark(1, Watermark(3))
    assert valve.status(1, WatermarkStatus(False)) == (None, None)
    assert valve.watermark(2, Watermark(5)) == (None, Watermark(5))
    assert valve.status(2, WatermarkStatus(False)) == (None, Watermark(7))
    assert valve.watermark(0, Watermark(9)) == (None, Watermark(9))
    assert valve.watermark(0, Watermark(MAX_WATERMARK)) == (WatermarkStatus(False), None)
    copy = WatermarkValve(3)
    copy.restore(valve.snapshot())
    for each in (valve, copy):
        assert each.status(1, WatermarkStatus(True)) == (WatermarkStatus(True), None)
        assert each.watermark(1, Watermark(8)) == (None, None)
        assert each.watermark(1, Watermark(12)) == (None, Watermark(12))
        assert each.watermark(1, Watermark(MAX_WATERMARK)) == (WatermarkStatus(False), None)
        assert each.status(2, WatermarkStatus(True)) == (WatermarkStatus(True), None)
        assert each.watermark(2, Watermark(MAX_WATERMARK)) == (None, Watermark(MAX_WATERMARK))


def test_channels_that_are_idle_when_another_one_ends_are_as_far_as_it_was() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, Watermark(7))
    valve.watermark(0, Watermark(MAX_WATERMARK))
    copy = WatermarkValve(2)
    copy.restore(valve.snapshot())
    for each in (valve, copy):
        assert each.status(1, WatermarkStatus(False)) == (WatermarkStatus(False), Watermark(7))


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(-50, 50)), max_size=60)
        )
    )
)
def test_against_a_minimum_that_is_worked_out_anew_each_time(case: tuple[int, list[tuple[int, int]]]) -> None:
    channels, marks = case
    valve = WatermarkValve(channels)
    highest = [MIN_WATERMARK] * channels
    given_out = MIN_WATERMARK
    for channel, mark in marks:
        highest[channel] = max(highest[channel], mark)
        risen = valve.watermark(channel, Watermark(mark))
        expected = min(highest)
        assert risen == (None, Watermark(expected) if expected > given_out else None)
        given_out = max(given_out, expected)
        assert valve.current == given_out


histories = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(-50, 50) | st.booleans()), max_size=60)
    )
)


@given(histories)
def test_whatever_fell_idle_on_the_way_time_never_goes_back_and_comes_to_its_end(
    history: tuple[int, list[tuple[int, int | bool]]],
) -> None:
    channels, events = history
    valve = WatermarkValve(channels)
    active = [True] * channels
    said = [True]
    out: list[Watermark] = []
    for channel, event in events:
        if isinstance(event, bool):
            active[channel] = event
            changed, risen = valve.status(channel, WatermarkStatus(event))
            if changed is not None:
                said.append(changed.active)
        elif active[channel]:
            _, risen = valve.watermark(channel, Watermark(event))
        else:
            continue  # who is idle says nothing
        out += [] if risen is None else [risen]
        assert said[-1] == any(active)
    for channel in range(channels):
        for mark in (
            valve.status(channel, WatermarkStatus(True))[1],
            valve.watermark(channel, Watermark(MAX_WATERMARK))[1],
        ):
            out += [] if mark is None else [mark]
    stamps = [mark.timestamp for mark in out]
    assert stamps == sorted(set(stamps))
    assert stamps[-1] == MAX_WATERMARK
    assert all(one is not other for one, other in pairwise(said))
