"""``python -m benchmarks``: measures, and prints one table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import machine
from benchmarks.harness import Plan, Row
from benchmarks.table import Measured, as_json, as_markdown, as_text, from_json, replace_between_markers

BENCHMARKS = (
    "chain",
    "wordcount",
    "windows",
    "timers",
    "nexmark",
    "joins",
    "files",
    "latency",
    "transports",
    "serializers",
    "state",
    "checkpoints",
    "pauses",
    "restores",
    "batches",
    "columns",
    "backpressure",
    "web",
    "workers",
    "startup",
    "peers",
    "kafka",
    "sparksource",
    "spark",
    "microbatches",
)

IN_README = (
    "chain",
    "wordcount",
    "windows",
    "columns",
    "timers",
    "nexmark",
    "files",
    "checkpoints",
    "latency",
    "startup",
)
README_RUNS = 3
"""Enough for a median, and few enough that all of them take some quarter of an hour on two cores."""


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.from_json is not None:
        measured = from_json(json.loads(arguments.from_json.read_text()))
    else:
        runs = arguments.runs or (README_RUNS if arguments.readme is not None else 5)
        plan = Plan(runs, arguments.quick, arguments.seconds, arguments.peers)
        default = IN_README if arguments.readme is not None else BENCHMARKS
        measured = measure(arguments.only or default, plan)
        if measured.is_interrupted:
            print(as_text(measured))
            raise SystemExit(130)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(as_json(measured), indent=2) + "\n")
    print(as_markdown(measured) if arguments.markdown else as_text(measured))
    if arguments.readme is not None:
        replace_between_markers(arguments.readme, as_markdown(measured))


def measure(names: Sequence[str], plan: Plan) -> Measured:
    """Run these benchmarks, one after the other, until Ctrl-C: what was measured before it is not lost."""
    facts = machine.facts()
    warnings = machine.warnings(facts)
    rows: dict[str, list[Row]] = {}
    loads: dict[str, float] = {}
    for name in names:
        loads[name] = machine.load()
        print(f"measuring {name} (load {loads[name]}) ...", file=sys.stderr, flush=True)
        warnings += machine.warnings({**facts, "load": loads[name]}, name) if rows else []
        benchmark: Callable[[Plan], Iterator[Row]] = import_module(f"benchmarks.{name}").measure
        rows[name] = []
        try:
            rows[name].extend(benchmark(plan))
        except KeyboardInterrupt:
            if not any(rows.values()):
                raise
            return Measured(facts, [*warnings, f"interrupted in {name}"], plan, rows, loads, is_interrupted=True)
    return Measured(facts, warnings, plan, rows, loads)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="measure this one; may be given more than once"
    )
    parser.add_argument(
        "--runs", type=_runs, help=f"how often each thing is measured (default: 5, with --readme {README_RUNS})"
    )
    parser.add_argument(
        "--seconds", type=_runs, default=30, help="how long back-pressure is looked at (default: 30)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that all works, measures nothing")
    parser.add_argument(
        "--peers",
        metavar="DIRECTORY",
        help="measure Flink, too: its jars are downloaded into this directory unless they are there",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing, read figures from there")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument(
        "--readme",
        type=Path,
        metavar="FILE",
        help=f"put the tables between the markers of this file; measures {', '.join(IN_README)} unless told",
    )
    return parser


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()
