"""Sessions at hand: the same, in the same order and in the same state, as with all of them in the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from effort import diagonal, examples
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.operators.windows import factory, sessions
from sluiceway.operators.windows.merging import MergingWindowOperator
from sluiceway.operators.windows.sessions import SessionWindowOperator
from sluiceway.testing import OperatorHarness
from sluiceway.windows import CountEvictor, EventTimeSessionWindows

LATE: sw.OutputTag[Any] = sw.OutputTag("late")

Record: TypeAlias = tuple[str, int, int]
"""Key, gap where it is dynamic, number."""

Steps: TypeAlias = list[tuple[list[tuple[Record, int]], int | None]]
"""Records with timestamps, and the watermark behind them; None: a snapshot and a restore."""


class Listed(sw.AggregateFunction[Record, list[int], tuple[int, ...]]):
    """Changes its accumulators."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Record, accumulator: list[int]) -> list[int]:
        accumulator.append(value[2])
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)

    def merge(self, accumulator1: list[int], accumulator2: list[int]) -> list[int]:
        accumulator1 += accumulator2
        return accumulator1


def told(key: str, window: Any, elements: list[Any]) -> list[Any]:
    return [(key, window.start, window.end, elements)]


class Counted(sw.ProcessWindowFunction[str, Any, Any]):
    """With state of the key, and a result when the window is over."""

    ended = sw.ValueStateDescriptor("ended", int, default=0)

    def process(self, key: str, context: Any, elements: list[Any]) -> list[Any]:
        state = context.global_state().get_state(self.ended)
        state.update(state.value() + 1)
        return [(key, state.value(), context.current_watermark(), *elements)]

    def clear(self, context: Any) -> None:
        assert context.window().end


FINISHES: dict[str, Callable[[Any], Any]] = {
    "count": lambda w: w.count(),
    "sum": lambda w: w.sum(2),
    "sum of": lambda w: w.sum(lambda r: r[2]),
    "max": lambda w: w.max(),
    "aggregate": lambda w: w.aggregate(Listed(), told),
    "reduce": lambda w: w.reduce(lambda a, b: (a[0], a[1], a[2] * 10 + b[2]), told),
    "apply": lambda w: w.apply(told),
    "process": lambda w: w.process(Counted()),
    "evictor": lambda w: w.evictor(CountEvictor(2)).apply(told),
}
ASSIGNERS: dict[str, EventTimeSessionWindows] = {
    "fixed": EventTimeSessionWindows.with_gap(5),
    "dynamic": EventTimeSessionWindows.with_dynamic_gap(lambda r: r[1]),
}

records = st.tuples(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 12), st.integers(0, 99)), st.integers(0, 30)
)
steps = st.lists(
    st.tuples(st.lists(records, max_size=8), st.one_of(st.none(), st.integers(0, 35))), min_size=1, max_size=8
)


@contextmanager
def at_hand(use: bool, most: int = 2) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_MOST", most)
        if not use:
            patch.setattr(factory, "works_on_sessions", lambda step: False)
        yield


def run(
    program: Callable[[Any], Any], given: Steps, uses: list[bool], batch_size: int, **options: Any
) -> list[Any]:
    """All that comes out, with the timestamps; each restore changes to the next way of ``uses``.

    Results of one timestamp are sorted behind a restore, as timers of different keys then fire in any order.
    """
    out: list[Any] = []
    watermark = -1
    turn = 0

    def opened(**more: Any) -> OperatorHarness:
        with at_hand(uses[turn % len(uses)]):
            h = OperatorHarness(program, **options, **more)
        kind = type(h._subtasks[0].operators[0])
        assert kind is (SessionWindowOperator if uses[turn % len(uses)] else MergingWindowOperator)
        return h

    h = opened()
    try:
        for batch, after in [*given, ([], 1000)]:
            with at_hand(True):
                for start in range(0, len(batch), batch_size):
                    part = batch[start : start + batch_size]
                    h.process_batch([value for value, _ in part], [timestamp for _, timestamp in part])
                if after is not None and after > watermark:
                    watermark = after
                    h.process_watermark(watermark)
            if after is None:
                saved = h.snapshot()
                if turn % 2:
                    turn += 1
                    continue  # and goes on as it is
                ended = h.records
                out += (
                    sorted(ended, key=lambda r: (r[1], repr(r))) if out else ended,
                    ("late", h.side_records(LATE)),
                )
                h.close()
                turn += 1
                h = opened(restored=saved)
                h.process_watermark(watermark)
        ended = h.records
        out += sorted(ended, key=lambda r: (r[1], repr(r))) if out else ended, ("late", h.side_records(LATE))
    finally:
        h.close()
    return out


@pytest.mark.parametrize(("finish", "assigner"), diagonal(list(FINISHES), list(ASSIGNERS)))
@examples(3, 10)
@given(steps, st.sampled_from([1, 3, 1024]))
def test_sessions_at_hand_are_those_in_the_tables(
    finish: str, assigner: str, given: Steps, batch_size: int
) -> None:
    def program(stream: Any) -> Any:
        windows = stream.key_by(lambda r: r[0]).window(ASSIGNERS[assigner])
        return FINISHES[finish](windows.side_output_late_data(LATE))

    wanted = run(program, given, [False], batch_size)
    assert run(program, given, [True], batch_size) == wanted
    assert run(program, given, [True, True, False, False], batch_size) == wanted
    assert run(program, given, [False, False, True, True], batch_size) == wanted


@pytest.mark.parametrize("finish", ["aggregate", "reduce", "apply"])
@settings(max_examples=3, deadline=None)
@given(steps, st.sampled_from([1, 1024]))
def test_on_a_backend_that_keeps_no_objects(finish: str, given: Steps, batch_size: int) -> None:
    pytest.importorskip("rocksdict")

    def program(stream: Any) -> Any:
        windows = stream.key_by(lambda r: r[0]).window(ASSIGNERS["fixed"])
        return FINISHES[finish](windows.side_output_late_data(LATE))

    wanted = run(program, given, [False], batch_size)
    assert run(program, given, [True], batch_size, state_backend="rocksdb") == wanted


def test_what_is_at_hand_is_bounded_and_in_a_snapshot() -> None:
    with at_hand(True, most=3):
        with OperatorHarness(lambda s: s.key_by(lambda r: r).window(ASSIGNERS["fixed"]).count()) as h:
            operator: Any = h._subtasks[0].operators[0]
            for key in "abc":
                h.process(key, 0)
            assert len(operator._sessions) == 3
            assert not operator._sets
            h.process("d", 1)
            assert not operator._sessions
            assert set(operator._sets) == set("abcd")
            h.process("a", 3)
            assert list(operator._sessions) == ["a"]
            saved = h.snapshot()
            assert not operator._sessions
            h.process("a", 4)  # is not in the snapshot
        with OperatorHarness(
            lambda s: s.key_by(lambda r: r).window(ASSIGNERS["fixed"]).count(), restored=saved
        ) as h:
            assert sorted(h.process_watermark(100)) == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]


@pytest.mark.parametrize("is_written", [False, True])
def test_nothing_is_left_of_a_session_that_is_over(is_written: bool) -> None:
    with OperatorHarness(lambda s: s.key_by(lambda r: r).window(ASSIGNERS["fixed"]).count()) as h:
        h.process_batch(["a", "b"], [0, 1])
        if is_written:
            h.snapshot()
        h.process("a", 2)
        assert h.process_watermark(50) == [("b", 1), ("a", 2)]
        operator: Any = h._subtasks[0].operators[0]
        assert not operator._sessions
        assert not operator._sets
        assert not operator._windows
        assert not list(operator._table.namespaces())


def test_a_record_that_fails_is_named() -> None:
    flow = sw.Pipeline("bad")
    stream = flow.from_collection([("a", 1), ("a", "x")], timestamp=lambda r: 0).key_by(lambda r: r[0])
    stream.window(ASSIGNERS["fixed"]).sum(lambda r: r[1]).collect()
    with pytest.raises(TypeError) as caught:
        flow.run()
    notes = "\n".join(caught.value.__notes__)
    assert "record: ('a', 'x')" in notes
    assert "key: 'a'" in notes
