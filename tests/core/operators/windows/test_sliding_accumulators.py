"""Sliding accumulators, against merging every slice of a window for every window."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.operators.windows.sliding_accumulators import SlidingAccumulators

_WIDTH = 10
_Slice = dict[str, str]


def _merge(older: str, newer: str) -> str:
    return older + newer


def _results(window: SlidingAccumulators, size: int = 3) -> dict[str, str]:
    found: dict[str, str] = {}
    for results in window.results(None, size, with_key=True):
        assert 0 < len(results) <= size
        for key, result in results:
            assert key not in found
            found[key] = result
    assert list(found) == list(window)
    return found


def _merged(slices: dict[int, _Slice], start: int, end: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for at in sorted(slices):
        if start <= at < end:
            for key, value in slices[at].items():
                found[key] = found.get(key, "") + value
    return found


@given(st.data())
def test_holds_what_its_slices_hold(data: st.DataObject) -> None:
    """Windows that move on by any number of slices; slices that change after they came in; order is kept."""
    size = data.draw(st.integers(1, 6), "slices of a window")
    slices: dict[int, _Slice] = {}
    window = SlidingAccumulators(slices, _WIDTH, _merge, None, "test")
    end = data.draw(st.integers(-3, 3), "end of the first window")
    for number in range(data.draw(st.integers(1, 25), "windows")):
        changes = data.draw(
            st.lists(st.tuples(st.integers(end - size, end - 1), st.sampled_from("abcd")), max_size=6), "changes"
        )
        for at, key in changes:
            entries = slices.setdefault(at * _WIDTH, {})
            entries[key] = entries.get(key, "") + f"{number}."
            window.touch(key)
        start = (end - size) * _WIDTH
        for _ in window.move_to(start, end * _WIDTH):
            pass
        assert _results(window) == _merged(slices, start, end * _WIDTH)
        end += data.draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3, 9]), "step")
        for at in [at for at in slices if at < (end - size) * _WIDTH]:
            del slices[at]


def test_takes_the_touched_alone_from_the_slices_again() -> None:
    slices = {0: {"a": "1", "b": "2"}, 10: {"a": "3", "b": "4"}}
    window = SlidingAccumulators(slices, _WIDTH, _merge, None, "test")
    list(window.move_to(0, 20))
    slices[0]["a"] += "!"
    slices[10]["b"] += "!"
    window.touch("a")
    list(window.move_to(0, 20))
    assert _results(window) == {"a": "1!3", "b": "24"}


def test_merges_an_accumulator_three_times_however_many_slices_a_window_has() -> None:
    merges = Counter[str]()

    def merge(older: str, newer: str) -> str:
        merges["all"] += 1
        return newer

    size, windows = 60, 600
    slices = {at * _WIDTH: {"a": "x", "b": "y"} for at in range(size + windows)}
    window = SlidingAccumulators(slices, _WIDTH, merge, None, "test")
    for first in range(windows):
        list(window.move_to(first * _WIDTH, (first + size) * _WIDTH))
        assert len(_results(window)) == 2
    assert merges["all"] <= 3 * 2 * (windows + size)


def test_gives_way_in_parts() -> None:
    slices = {0: {str(key): "x" for key in range(40_000)}}
    window = SlidingAccumulators(slices, _WIDTH, _merge, None, "test")
    assert len(list(window.move_to(0, 10))) == 3
    assert [len(results) for results in window.results(None, 15_000)] == [15_000, 15_000, 10_000]


def test_what_is_not_wanted_is_left_out_and_what_is_given_out_is_owned() -> None:
    slices = {0: {"a": "1", "b": "2"}, 10: {"c": "3"}}
    window = SlidingAccumulators(slices, _WIDTH, _merge, None, "test")
    list(window.move_to(-10, 10))
    list(window.move_to(0, 20))
    assert list(window.results(len, 10, lambda key: key != "b")) == [[1], [1]]
    window.own = lambda accumulator: f"copy of {accumulator}"
    assert _results(window) == {"a": "copy of 1", "b": "copy of 2", "c": "copy of 3"}
