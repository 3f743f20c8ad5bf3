"""Comparisons: what they check, what they time, and the two forms of a loop."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import harness  # noqa: E402
from benchmarks.nexmarkloops import LOOPS  # noqa: E402

pytestmark = pytest.mark.docs

LIMIT = 3


def squares(numbers: Sequence[int], emit: harness.Emit) -> None:
    def fire(number: int) -> None:
        emit(number + LIMIT)

    for number in numbers:
        calls.append(number)
        emit(number * number)
    fire(0)


calls: list[int] = []


def hides_emit(numbers: Sequence[int], emit: harness.Emit) -> None:
    give = emit
    for number in numbers:
        give(number)


def way(results: Sequence[int], run: Callable[[], object] = lambda: None) -> harness.Way:
    return harness.Way(lambda: results, run)


@pytest.mark.parametrize(
    ("ours", "in_order", "difference"),
    [
        ([1, 3, 2], True, "result 1 is 3 instead of 2"),
        ([1, 2], True, "2 results instead of 3"),
        ([1, 2, 3, 3], False, "4 results instead of 3"),
    ],
)
def test_what_differs_is_not_timed(ours: Sequence[int], in_order: bool, difference: str) -> None:
    def never() -> None:
        raise AssertionError("timed")

    sides = {"a loop": way([1, 2, 3], never)}
    unfair = harness.Comparison("it", 3, way(ours, never), sides, in_order=in_order)
    with pytest.raises(RuntimeError, match=f"^it: the pipeline and a loop differ: {difference}$"):
        harness.compare(unfair, harness.Plan(runs=1))


def test_each_of_the_other_sides_is_checked() -> None:
    comparison = harness.Comparison("it", 2, way([1, 2]), {"one": way([1, 2]), "other": way([2, 1])})
    with pytest.raises(RuntimeError, match=r"^it: the pipeline and other differ"):
        harness.compare(comparison, harness.Plan(runs=1))


def test_a_ratio_is_the_time_of_the_loop_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns, each side once per run; results are made before, and not timed."""
    now = 0.0
    turns: list[str] = []

    def side(seconds: float, name: str) -> harness.Way:
        def work() -> None:
            nonlocal now
            now += seconds
            turns.append(name)

        def results() -> list[int]:
            turns.append(f"check {name}")
            return []

        return harness.Way(results, work)

    monkeypatch.setattr(harness.time, "perf_counter", lambda: now)
    monkeypatch.setattr(harness.time, "process_time", lambda: now / 2)
    sides = {"functions": side(3.0, "functions"), "by hand": side(1.0, "by hand")}
    comparison = harness.Comparison("it", 6, side(4.0, "ours"), sides, aim=0.8, floor=0.7)
    functions, by_hand = harness.compare(comparison, harness.Plan(runs=2))
    assert turns == ["check ours", "check functions", "check by hand", *["functions", "by hand", "ours"] * 2]
    assert (functions.values, by_hand.values) == ((0.75, 0.75), (0.25, 0.25))
    assert (functions.verdict, by_hand.verdict) == ("above floor", "")
    assert functions.title == "it, against functions"
    assert functions.note == (
        "1.5 records/s, 666666667 ns each; the loop 500000000 ns; 50% of the time went elsewhere, "
        "by processor time 0.75"
    )


def test_a_loop_discards_in_the_measured_run_what_it_emits_in_the_check() -> None:
    loop = harness.Loop(squares, [1, 2, 3])
    calls.clear()
    assert loop.results() == [1, 4, 9, 3]
    assert loop.count() == 4
    loop.run()  # with None for emit: it would fail if it called it
    assert calls == [1, 2, 3] * 3


def test_a_loop_that_could_still_emit_when_it_discards_is_refused() -> None:
    with pytest.raises(ValueError, match="hides_emit must use emit in statements emit\\(result\\) only"):
        harness.Loop(hides_emit, [1])

    def closes(numbers: Sequence[int], emit: harness.Emit) -> None:
        emit(len(calls) if loop is None else 0)

    loop = None
    with pytest.raises(ValueError, match="closes has a closure"):
        harness.Loop(closes, [1])


def test_the_loop_computes_its_results_when_it_discards_them() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        harness.Loop(squares, fails()).run()
    with pytest.raises(TypeError):
        harness.Loop(squares, ["a"]).run()


@pytest.mark.parametrize("name", LOOPS)
def test_the_loops_of_nexmark_need_no_more_than_one_pass(name: str) -> None:
    """They are given an iterator, so they cannot look at all events at once, and emit before the end."""
    from benchmarks.nexmark import CONFIG
    from examples.nexmark import nexmark_events

    seen = 0
    emitted: list[int] = []

    def events() -> Iterator[Any]:
        nonlocal seen
        for event in nexmark_events(40_000, CONFIG):
            seen += 1
            yield event

    LOOPS[name](events(), lambda result: emitted.append(seen))
    assert seen == 40_000
    # The only window of processing time ends with the input.
    assert emitted[0] < seen or name == "q12"


def test_names_of_benchmarks_in_the_documents_are_those_of_the_command() -> None:
    from benchmarks.__main__ import BENCHMARKS

    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"--only ([a-z]+)", page.read_text())}
    assert {"files", "workers"} <= named <= set(BENCHMARKS)
