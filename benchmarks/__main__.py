"""``python -m benchmarks``: measures, and prints one table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks import machine
from benchmarks.harness import Plan, Row
from benchmarks.table import as_json, as_text

BENCHMARKS = (
    "chain",
    "wordcount",
    "windows",
    "timers",
    "nexmark",
    "joins",
    "latency",
    "transports",
    "serializers",
    "state",
    "checkpoints",
    "backpressure",
    "workers",
    "startup",
    "peers",
    "sparksource",
    "spark",
)


def main() -> None:
    arguments = _parser().parse_args()
    plan = Plan(runs=arguments.runs, quick=arguments.quick, seconds=arguments.seconds)
    facts = machine.facts()
    warnings = machine.warnings(facts)
    rows: list[Row] = []
    for name in arguments.only or BENCHMARKS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        measure: Callable[[Plan], Iterator[Row]] = import_module(f"benchmarks.{name}").measure
        rows.extend(measure(plan))
    print(as_text(facts, warnings, plan, rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(facts, warnings, plan, rows), indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="measure this one; may be given more than once"
    )
    parser.add_argument("--runs", type=_runs, default=5, help="how often each thing is measured (default: 5)")
    parser.add_argument(
        "--seconds", type=_runs, default=30, help="how long back-pressure is looked at (default: 30)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that all works, measures nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    return parser


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    main()
