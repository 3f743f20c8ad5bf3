"""Word count over a generated text: a running count per word, emitted for every word.

The pipeline is given functions of types that are known, the same ones as lambdas without types, the built-in
``count()``, a process function, and a process function of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sluiceway as sw
from benchmarks.harness import BY_HAND, FUNCTIONS, Comparison, Emit, Job, Loop, Plan, Row, compare
from benchmarks.text import zipf_lines

__all__ = ["Pair", "add", "by_hand", "measure", "reduced", "split", "word_of"]

Pair = tuple[str, int]
BATCH = 1_024


def split(line: str) -> list[Pair]:
    return [(word, 1) for word in line.split()]


def word_of(pair: Pair) -> str:
    return pair[0]


def add(so_far: Pair, pair: Pair) -> Pair:
    return (so_far[0], so_far[1] + pair[1])


SPLIT: Any = lambda line: [(word, 1) for word in line.split()]  # noqa: E731
WORD: Any = lambda pair: pair[0]  # noqa: E731
ADD: Any = lambda so_far, pair: (so_far[0], so_far[1] + pair[1])  # noqa: E731


class CountWords(sw.KeyedProcessFunction[str, Pair, Pair]):
    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._count = runtime_context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Pair, ctx: sw.KeyedProcessFunction.Context) -> Iterable[Pair]:
        count = self._count.value() + value[1]
        self._count.update(count)
        return [(value[0], count)]


class CountWordsInBatches(sw.KeyedBatchProcessFunction[str, Pair, Pair]):
    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._count = runtime_context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_batch(self, values: Sequence[Pair], ctx: sw.KeyedBatchProcessFunction.Context) -> list[Pair]:
        counts = ctx.bulk(self._count)
        count_of = counts.get
        results: list[Pair] = []
        for word, one in values:
            count = counts[word] = count_of(word, 0) + one
            results.append((word, count))
        return results


def measure(plan: Plan) -> Iterator[Row]:
    lines = zipf_lines(plan.size(150_000, 300))

    def comparison(
        name: str,
        counted: Callable[[sw.KeyedStream[Pair, str]], sw.DataStream[Pair]],
        loop: Loop,
        **options: Any,
    ) -> Comparison:
        def build(flow: sw.Pipeline) -> sw.DataStream[Pair]:
            return counted(flow.from_collection(lines).flat_map(split).key_by(word_of))

        return Comparison(
            f"word count, {name}",
            len(lines) * 10,
            Job(build),
            {FUNCTIONS: loop, BY_HAND: Loop(by_hand, lines)},
            **options,
        )

    functions = Loop(reduced, lines, split, word_of, add)
    yield from compare(comparison("reduce", lambda words: words.reduce(add), functions, aim=0.6, floor=0.5), plan)
    yield from compare(
        Comparison(
            "word count, reduce, lambdas without types",
            len(lines) * 10,
            Job(lambda flow: flow.from_collection(lines).flat_map(SPLIT).key_by(WORD).reduce(ADD)),
            {FUNCTIONS: Loop(reduced, lines, SPLIT, WORD, ADD)},
        ),
        plan,
    )
    yield from compare(_in_parallel(lines, functions, 2), plan)
    yield from compare(
        comparison("count()", lambda words: words.count(), Loop(_counted, lines, split, word_of)), plan
    )
    yield from compare(
        comparison(
            "process function with state", lambda words: words.process(CountWords()), Loop(_processed, lines)
        ),
        plan,
    )
    yield from compare(
        comparison(
            "process function of batches",
            lambda words: words.process(CountWordsInBatches()),
            Loop(_processed_in_batches, lines),
        ),
        plan,
    )


def _in_parallel(lines: list[str], functions: Loop, parallelism: int) -> Comparison:
    return Comparison(
        f"word count, reduce, parallelism {parallelism} in one process",
        len(lines) * 10,
        Job(lambda flow: flow.from_collection(lines).flat_map(split).key_by(word_of).reduce(add), parallelism),
        {FUNCTIONS: functions},
        in_order=False,
    )


# ---- loops ------------------------------------------------------------------------------------------------------


def by_hand(lines: Iterable[str], emit: Emit) -> None:
    counts: dict[str, int] = {}
    count_of = counts.get
    for line in lines:
        for word in line.split():
            count = counts[word] = count_of(word, 0) + 1
            emit((word, count))


def reduced(
    lines: Iterable[str],
    split: Callable[[str], list[Pair]],
    word_of: Callable[[Pair], str],
    add: Callable[[Pair, Pair], Pair],
    emit: Emit,
) -> None:
    reduced: dict[str, Pair] = {}
    so_far_of = reduced.get
    for line in lines:
        for pair in split(line):
            word = word_of(pair)
            so_far = so_far_of(word)
            new = reduced[word] = pair if so_far is None else add(so_far, pair)
            emit(new)


def _counted(
    lines: Iterable[str], split: Callable[[str], list[Pair]], word_of: Callable[[Pair], str], emit: Emit
) -> None:
    counts: dict[str, int] = {}
    count_of = counts.get
    for line in lines:
        for pair in split(line):
            word = word_of(pair)
            count = counts[word] = count_of(word, 0) + 1
            emit((word, count))


class _Cell:
    """Value state of the current key, over a dict: what a loop needs to call a process function."""

    def __init__(self) -> None:
        self.key = ""
        self.values: dict[str, int] = {}

    def value(self) -> int:
        return self.values.get(self.key, 0)

    def update(self, value: int) -> None:
        self.values[self.key] = value


class _Bulk:
    """Context of a process function of batches, over a dict."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def bulk(self, state: object) -> dict[str, int]:
        return self.values


def _processed(lines: Iterable[str], emit: Emit) -> None:
    function: Any = CountWords()
    state = function._count = _Cell()
    process = function.process_element
    for line in lines:
        for pair in split(line):
            state.key = word_of(pair)
            for result in process(pair, None):
                emit(result)


def _processed_in_batches(lines: Iterable[str], emit: Emit) -> None:
    function: Any = CountWordsInBatches()
    function._count = None
    context = _Bulk()
    process = function.process_batch
    batch: list[Pair] = []
    for line in lines:
        batch += split(line)
        if len(batch) >= BATCH:
            for result in process(batch, context):
                emit(result)
            batch = []
    for result in process(batch, context):
        emit(result)
