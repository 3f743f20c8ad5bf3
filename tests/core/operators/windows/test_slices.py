"""The arithmetic of slices, against the windows that the assigners give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.operators.windows.slices import Slices
from sluiceway.windows import SlidingEventTimeWindows


class _NoClock:
    def current_processing_time(self) -> int:
        raise AssertionError("windows of event time have no use for a clock")


@st.composite
def _slices(draw: st.DrawFn) -> Slices:
    slide = draw(st.integers(1, 30))
    size = draw(st.integers(slide, 100))
    return Slices(size, slide, draw(st.integers(1 - slide, slide - 1)))


def _ends(slices: Slices, timestamp: int) -> list[int]:
    assigner = SlidingEventTimeWindows(slices.size, slices.slide, slices.offset)
    return sorted(window.end for window in assigner.assign(None, timestamp, _NoClock()))


@given(_slices(), st.integers(-500, 500))
def test_all_records_of_a_slice_belong_to_the_same_windows(slices: Slices, timestamp: int) -> None:
    start = slices.start_of(timestamp)
    assert start <= timestamp < start + slices.width
    assert {tuple(_ends(slices, t)) for t in range(start, start + slices.width)} == {
        tuple(_ends(slices, timestamp))
    }


@given(_slices(), st.integers(-500, 500))
def test_the_windows_of_a_slice(slices: Slices, timestamp: int) -> None:
    ends = _ends(slices, timestamp)
    start = slices.start_of(timestamp)
    assert slices.first_end(start) == ends[0]
    assert slices.last_end(start) == ends[-1]


@given(_slices(), st.integers(-500, 500))
def test_the_next_window_to_end(slices: Slices, timestamp: int) -> None:
    later = [end for t in range(timestamp, timestamp + slices.slide + 1) for end in _ends(slices, t)]
    assert slices.next_end(timestamp) == min(end for end in later if end > timestamp)
