"""Word count in columns: lines are split, and words counted, for each word so far or in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sluiceway as sw
from benchmarks.harness import BY_HAND, Comparison, Emit, Loop, Plan, Row, Way, compare
from benchmarks.text import zipf_lines
from benchmarks.wordcount import by_hand
from sluiceway.connector.lib import DiscardSink

__all__ = ["counted_so_far", "measure_words", "totals"]


def measure_words(plan: Plan) -> Iterator[Row]:
    import pyarrow as pa

    lines = zipf_lines(plan.size(300_000, 1_000))
    table = pa.table({"line": lines})
    for name, build, loop, aim in (
        ("running count per word", counted_so_far, by_hand, 1.5),
        ("totals", totals, _totals_by_hand, 2.5),
    ):
        yield from compare(
            Comparison(
                f"word count in columns, {name}",
                len(lines) * 10,
                _way(build, table),
                {BY_HAND: Loop(loop, lines)},
                in_order=False,
                aim=aim,
                floor=aim / 2,
            ),
            plan,
        )


def _way(build: Any, table: Any) -> Way:
    def results() -> list[tuple[str, int]]:
        found = build(sw.Pipeline("benchmark").table(table)).to_arrow()
        return list(zip(found["word"].to_pylist(), found["count"].to_pylist(), strict=True))

    def run() -> None:
        flow = sw.Pipeline("benchmark")
        build(flow.table(table)).sink(DiscardSink())
        flow.run()

    return Way(results, run)


def _words(lines: Any) -> Any:
    from sluiceway.table import col

    return lines.select(word=col("line").str.split(" ")).explode("word").key_by("word")


def counted_so_far(lines: Any) -> Any:
    from sluiceway.table import agg

    return _words(lines).running(count=agg.count())


def totals(lines: Any) -> Any:
    from sluiceway.table import agg

    return _words(lines).aggregate(count=agg.count())


def _totals_by_hand(lines: Iterable[str], emit: Emit) -> None:
    counts: dict[str, int] = {}
    count_of = counts.get
    for line in lines:
        for word in line.split():
            counts[word] = count_of(word, 0) + 1
    for pair in counts.items():
        emit(pair)
