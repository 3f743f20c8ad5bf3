"""The queries of Nexmark over the same events, against loops that see all events at once.

The loops have it easier: they wait for nothing, keep nothing in order, and answer once, in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from examples.nexmark import QUERIES, REFERENCE, Event, NexmarkConfig, Query, nexmark_events, watermarks_of

import sluiceway as sw
from benchmarks.harness import Comparison, Plan, Row, compare

__all__ = ["measure"]

# A second takes so few events that there are windows enough.
CONFIG = NexmarkConfig(events_per_second=1_000)


def measure(plan: Plan) -> Iterator[Row]:
    events = list(nexmark_events(plan.size(50_000, 3_000), CONFIG))
    for query in QUERIES.values():
        yield compare(_comparison(query, events), plan)


def _comparison(query: Query, events: Sequence[Event]) -> Comparison:
    return Comparison(
        f"nexmark {query.name}",
        len(events),
        loop=lambda: list(REFERENCE[query.name](events)),
        ours=lambda: _answers(query, events),
        in_order=False,
    )


def _answers(query: Query, events: Sequence[Event]) -> Sequence[Any]:
    flow = sw.Pipeline(f"nexmark {query.name}")
    stream = flow.from_collection(events, timestamp=lambda event: event.date_time)
    results = query.build(stream.assign_timestamps_and_watermarks(watermarks_of(CONFIG))).collect()
    flow.run()
    return query.final(results)
