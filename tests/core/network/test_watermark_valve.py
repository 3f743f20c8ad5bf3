from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark, WatermarkStatus
from sluiceway.network.watermark_valve import WatermarkValve


def test_the_minimum_of_all_channels() -> None:
    valve = WatermarkValve(2)
    assert valve.watermark(0, Watermark(10)) is None
    assert valve.watermark(1, Watermark(5)) == Watermark(5)
    assert valve.watermark(1, Watermark(20)) == Watermark(10)
    assert valve.watermark(1, Watermark(15)) is None
    assert valve.current == 10


def test_an_idle_channel_does_not_hold_the_others_back() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, Watermark(10))
    assert valve.status(1, WatermarkStatus(False)) == (None, Watermark(10))
    # Back again, but behind: it counts only once it has caught up.
    assert valve.status(1, WatermarkStatus(True)) == (None, None)
    assert valve.watermark(1, Watermark(3)) is None
    assert valve.watermark(0, Watermark(12)) == Watermark(12)
    assert valve.watermark(1, Watermark(12)) is None
    assert valve.watermark(0, Watermark(30)) is None
    assert valve.watermark(1, Watermark(20)) == Watermark(20)


def test_all_idle_means_idle_and_one_active_means_active() -> None:
    valve = WatermarkValve(2)
    valve.watermark(0, Watermark(7))
    assert valve.status(0, WatermarkStatus(False)) == (None, None)
    assert valve.status(1, WatermarkStatus(False)) == (WatermarkStatus(False), Watermark(7))
    assert valve.status(0, WatermarkStatus(True)) == (WatermarkStatus(True), None)


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
        assert risen == (Watermark(expected) if expected > given_out else None)
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
            risen = valve.watermark(channel, Watermark(event))
        else:
            continue  # who is idle says nothing
        out += [] if risen is None else [risen]
        assert said[-1] == any(active)
    for channel in range(channels):
        for mark in (
            valve.status(channel, WatermarkStatus(True))[1],
            valve.watermark(channel, Watermark(MAX_WATERMARK)),
        ):
            out += [] if mark is None else [mark]
    stamps = [mark.timestamp for mark in out]
    assert stamps == sorted(set(stamps))
    assert stamps[-1] == MAX_WATERMARK
    assert all(one is not other for one, other in pairwise(said))
