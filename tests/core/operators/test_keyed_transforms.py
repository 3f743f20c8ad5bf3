"""Function objects with state per key in map, flat_map and filter of a keyed stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.steps import KeyedFilterStep, KeyedFlatMapStep, KeyedMapStep, MapStep
from sluiceway.testing import OperatorHarness, every_way

Word = tuple[str, int]


def first(word: Word) -> str:
    return word[0]


class Counting(sw.Function):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int, default=0))

    def again(self) -> int:
        self.seen.update(self.seen.value() + 1)
        return self.seen.value()


class Numbered(Counting, sw.MapFunction[Word, tuple[str, int, int]]):
    def map(self, value: Word) -> tuple[str, int, int]:
        return (*value, self.again())


class Repeated(Counting, sw.FlatMapFunction[Word, tuple[str, int]]):
    def flat_map(self, value: Word) -> Iterable[tuple[str, int]]:
        for n in range(value[1]):  # a generator: the key must still be the record's when it goes on
            yield value[0], 10 * self.again() + n


class Odd(Counting, sw.FilterFunction[Word]):
    def filter(self, value: Word) -> bool:
        return self.again() % 2 == 1


WORDS: list[Word] = [("a", 2), ("b", 1), ("a", 0), ("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda s: s.map(Numbered()), [("a", 2, 1), ("b", 1, 1), ("a", 0, 2), ("a", 1, 3), ("b", 2, 2)]),
        (
            lambda s: s.flat_map(Repeated()),
            [("a", 10), ("a", 21), ("b", 10), ("a", 30), ("b", 20), ("b", 31)],
        ),
        (lambda s: s.filter(Odd()), [("a", 2), ("b", 1), ("a", 1)]),
    ],
)
@pytest.mark.parametrize("timestamps", [None, [1, 2, 3, 4, 5]])
def test_state_is_that_of_the_records_key(
    program: Callable[[Any], Any], expected: list[Any], timestamps: list[int] | None
) -> None:
    assert every_way(lambda s: program(s.key_by(first)), WORDS, timestamps=timestamps) == expected


def test_results_have_the_timestamps_of_their_records() -> None:
    with OperatorHarness(lambda s: s.key_by(first).flat_map(Repeated())) as op:
        op.process_batch(WORDS, [1, 2, 3, 4, 5])
        assert [stamp for _, stamp in op.records] == [1, 1, 2, 4, 5, 5]
    with OperatorHarness(lambda s: s.key_by(first).filter(Odd())) as op:
        op.process_batch(WORDS, [1, 2, 3, 4, 5])
        assert [stamp for _, stamp in op.records] == [1, 2, 4]


def test_the_type_that_comes_out_is_known_and_only_who_opens_has_state() -> None:
    flow = sw.Pipeline("types")
    keyed = flow.from_collection(WORDS).key_by(first)
    for stream, step in [
        (keyed.map(Numbered()), KeyedMapStep),
        (keyed.flat_map(Repeated()), KeyedFlatMapStep),
        (keyed.filter(Odd()), KeyedFilterStep),
        (keyed.map(first), MapStep),
    ]:
        assert type(stream._inputs[0].upstream.step) is step
    assert keyed.flat_map(Repeated())._inputs[0].upstream.step.output_type(None) == tuple[str, int]


def test_a_failure_names_record_and_key() -> None:
    class Fails(Numbered):
        def map(self, value: Word) -> Any:
            raise ValueError("no")

    with (
        OperatorHarness(lambda s: s.key_by(first).map(Fails())) as op,
        pytest.raises(ValueError, match="no") as no,
    ):
        op.process(("a", 2), timestamp=7)
    assert no.value.__notes__[1:] == ["record: ('a', 2)", "key: 'a'", "timestamp: 7 ms"]


def test_what_cannot_be_iterated_over_is_named() -> None:
    class One(Repeated):
        def flat_map(self, value: Word) -> Any:
            return 3

    with (
        OperatorHarness(lambda s: s.key_by(first).flat_map(One())) as op,
        pytest.raises(sw.FunctionContractError, match=r"'flat_map\(One\)' returned 3 \(int\), which cannot be"),
    ):
        op.process(("a", 2))


def test_state_wants_a_key_right_before() -> None:
    with pytest.raises(StateError, match=r"its input is not keyed: put key_by\(\.\.\.\) before it"):
        OperatorHarness(lambda s: s.map(Numbered()))
