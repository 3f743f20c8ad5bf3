"""``python -m examples.nexmark QUERY``: answers a query, and says how long that took."""

import sys
import time
from collections import Counter

import sluiceway as sw

from .generator import nexmark_events
from .queries import QUERIES
from .reference import REFERENCE
from .run import config_of, events_of, parser


def main() -> None:
    asked = parser("python -m examples.nexmark")
    asked.add_argument("--parallelism", type=int, default=1)
    asked.add_argument("--print", action="store_true", help="show every result")
    asked.add_argument(
        "--assert", action="store_true", dest="check", help="compare with what plain loops over all events find"
    )
    options = asked.parse_args()
    query, config = QUERIES[options.query], config_of(options)

    pipeline = sw.Pipeline(f"nexmark {query.name}", parallelism=options.parallelism)
    results = query.build(events_of(pipeline, options.events, config)).collect()
    began = time.perf_counter()
    pipeline.run()
    took = time.perf_counter() - began

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


if __name__ == "__main__":
    main()
