"""``python -m examples.nexmark QUERY``: answers a query, and says how long that took."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sluiceway as sw

from .generator import NexmarkConfig, nexmark_events
from .queries import QUERIES, Query
from .reference import REFERENCE
from .run import config_of, events_of, parser


def main() -> None:
    asked = parser("python -m examples.nexmark")
    asked.add_argument("--parallelism", type=int, default=1)
    asked.add_argument("--print", action="store_true", help="show every result")
    asked.add_argument(
        "--assert", action="store_true", dest="check", help="compare with what plain loops over all events find"
    )
    asked.add_argument("--columns", action="store_true", help="in columns; needs the extra columns")
    options = asked.parse_args()
    query, config = QUERIES[options.query], config_of(options)

    pipeline = sw.Pipeline(f"nexmark {query.name}", parallelism=options.parallelism)
    results, took = (_in_columns if options.columns else _in_records)(pipeline, query, options.events, config)

    if options.print:
        for result in results:
            print(result)
    print(
        f"{query.name}, {query.title}: {len(results)} results from {options.events} events "
        f"in {took:.2f} s, {options.events / took:,.0f} events/s"
    )
    if options.check:
        expected = Counter(REFERENCE[query.name](list(nexmark_events(options.events, config))))
        got = Counter(query.final(results))
        if got != expected:
            missing, extra = list((expected - got).elements()), list((got - expected).elements())
            sys.exit(f"{query.name} is wrong: missing {missing[:3]}..., in excess {extra[:3]}...")
        print(f"right: {sum(expected.values())} answers")


def _in_records(
    pipeline: sw.Pipeline, query: Query, count: int, config: NexmarkConfig
) -> tuple[Sequence[Any], float]:
    results = query.build(events_of(pipeline, count, config)).collect()
    began = time.perf_counter()
    pipeline.run()
    return results, time.perf_counter() - began


def _in_columns(
    pipeline: sw.Pipeline, query: Query, count: int, config: NexmarkConfig
) -> tuple[Sequence[Any], float]:
    from .columns import COLUMN_QUERIES, NOT_IN_COLUMNS, events_in, table_of

    if query.name in NOT_IN_COLUMNS:
        sys.exit(f"{query.name} is not in columns: it {NOT_IN_COLUMNS[query.name]}")
    in_columns = COLUMN_QUERIES[query.name]
    rows = in_columns.build(events_in(pipeline, table_of(list(nexmark_events(count, config))), config))
    began = time.perf_counter()
    found = rows.to_arrow()
    took = time.perf_counter() - began
    return in_columns.answers(found), took


if __name__ == "__main__":
    main()
