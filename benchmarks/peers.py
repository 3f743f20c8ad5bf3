"""The same word count with others' tools, as far as they are installed; nothing is installed for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from benchmarks.harness import FUNCTIONS, Comparison, Emit, Loop, Plan, Row, Way, compare
from benchmarks.text import zipf_lines
from benchmarks.wordcount import Pair, add, reduced, split, word_of

__all__ = ["measure"]

Lines = list[str]
Program = Callable[[Lines], Sequence[Pair]]


def measure(plan: Plan) -> Iterator[Row]:
    lines = zipf_lines(plan.size(100_000, 300))
    yield _row(
        "bytewax",
        "word count, reduce, by bytewax",
        lines,
        Loop(reduced, lines, split, word_of, add),
        _bytewax,
        plan,
    )
    yield _row(
        "pyarrow", "word count, final counts only, by pyarrow", lines, Loop(_final_loop, lines), _arrow, plan
    )


def _row(package: str, name: str, lines: Lines, loop: Loop, theirs: Program, plan: Plan) -> Row:
    if find_spec(package) is None:
        return Row(name, "x loop", (), note=f"{package} is not installed")
    comparison = Comparison(
        f"{name} {version(package)}",
        len(lines) * 10,
        Way(lambda: theirs(lines), lambda: theirs(lines)),
        {FUNCTIONS: loop},
        in_order=False,
    )
    try:
        (row,) = compare(comparison, plan)
        return row
    except Exception as error:  # their other versions are no reason to show nothing of ours
        return Row(comparison.name, "x loop", (), note=f"failed: {type(error).__name__}: {error}")


def _bytewax(lines: Lines) -> Sequence[Pair]:
    import bytewax.operators as op  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
    from bytewax.testing import TestingSink, TestingSource, run_main  # type: ignore[import-not-found]

    def reduce(so_far: Pair | None, pair: Pair) -> tuple[Pair, Pair]:
        new = pair if so_far is None else add(so_far, pair)
        return new, new

    results: list[Pair] = []
    flow = Dataflow("word_count")
    pairs = op.flat_map("split", op.input("lines", flow, TestingSource(lines, batch_size=1024)), split)
    counts = op.stateful_map("reduce", op.key_on("word", pairs, word_of), reduce)
    op.output("results", op.key_rm("pair", counts), TestingSink(results))
    run_main(flow)
    return results


def _final_loop(lines: Lines, emit: Emit) -> None:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    for pair in counts.items():
        emit(pair)


def _arrow(lines: Lines) -> Sequence[Pair]:
    """What is possible where no function of the user's is called: whole columns at a time."""
    import pyarrow
    import pyarrow.compute

    functions: Any = pyarrow.compute
    words = functions.list_flatten(functions.utf8_split_whitespace(pyarrow.array(lines)))
    counts = functions.value_counts(words)
    return list(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
