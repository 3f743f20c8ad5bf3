"""Word count over a generated text: a running count per word, emitted for every word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import sluiceway as sw
from benchmarks.harness import Comparison, Plan, Row, compare
from benchmarks.text import zipf_lines

__all__ = ["Pair", "add", "measure", "reduce_loop", "split", "word_of"]

Pair = tuple[str, int]


def split(line: str) -> list[Pair]:
    return [(word, 1) for word in line.split()]


def word_of(pair: Pair) -> str:
    return pair[0]


def add(so_far: Pair, pair: Pair) -> Pair:
    return (so_far[0], so_far[1] + pair[1])


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
    lines = zipf_lines(plan.size(100_000, 300))
    reduced = Comparison(
        "word count, reduce",
        len(lines) * 10,
        loop=lambda: reduce_loop(lines),
        ours=lambda: _pipeline(lines, lambda words: words.reduce(add)),
        aim=0.6,
        floor=0.5,
    )
    yield compare(reduced, plan)
    for parallelism in (2, 4):
        yield compare(_reduced_in_parallel(reduced, lines, parallelism), plan)
    yield compare(
        Comparison(
            "word count, count()",
            reduced.records,
            loop=lambda: _count_loop(lines),
            ours=lambda: _pipeline(lines, lambda words: words.count()),
        ),
        plan,
    )
    yield compare(
        Comparison(
            "word count, process function with state",
            reduced.records,
            loop=lambda: _count_loop(lines),
            ours=lambda: _pipeline(lines, lambda words: words.process(CountWords())),
        ),
        plan,
    )
    yield compare(
        Comparison(
            "word count, process function of batches",
            reduced.records,
            loop=lambda: _count_loop(lines),
            ours=lambda: _pipeline(lines, lambda words: words.process(CountWordsInBatches())),
        ),
        plan,
    )


def _reduced_in_parallel(reduced: Comparison, lines: list[str], parallelism: int) -> Comparison:
    return replace(
        reduced,
        name=f"word count, reduce, parallelism {parallelism} in one process",
        ours=lambda: _pipeline(lines, lambda words: words.reduce(add), parallelism),
        in_order=False,
        aim=None,
        floor=None,
    )


def _pipeline(
    lines: list[str],
    counted: Callable[[sw.KeyedStream[Pair, str]], sw.DataStream[Pair]],
    parallelism: int = 1,
) -> Sequence[Pair]:
    flow = sw.Pipeline("word count", parallelism=parallelism)
    results = counted(flow.from_collection(lines).flat_map(split).key_by(word_of)).collect()
    flow.run()
    return results


def reduce_loop(lines: list[str]) -> list[Pair]:
    results: list[Pair] = []
    reduced: dict[str, Pair] = {}
    so_far_of = reduced.get
    for line in lines:
        for pair in split(line):
            word = word_of(pair)
            so_far = so_far_of(word)
            new = reduced[word] = pair if so_far is None else add(so_far, pair)
            results.append(new)
    return results


def _count_loop(lines: list[str]) -> list[Pair]:
    results: list[Pair] = []
    counts: dict[str, int] = {}
    count_of = counts.get
    for line in lines:
        for pair in split(line):
            word = word_of(pair)
            count = counts[word] = count_of(word, 0) + 1
            results.append((word, count))
    return results
