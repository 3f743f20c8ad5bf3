"""The queries of Nexmark, each against a streaming loop that is written out by hand.

``nexmarkloops.py`` says what the loops do and what they may assume. The answers are also compared with those of
``examples/nexmark/reference.py``, which looks at all events at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from examples.nexmark import QUERIES, REFERENCE, Event, NexmarkConfig, Query, nexmark_events, watermarks_of

import sluiceway as sw
from benchmarks.harness import Comparison, Job, Loop, Plan, Row, Way, check_same, compare
from benchmarks.nexmarkloops import LOOPS

__all__ = ["BY_HAND", "measure"]

# A second takes so few events that there are windows enough.
CONFIG = NexmarkConfig(events_per_second=1_000)

BY_HAND = "a streaming loop written out by hand"

EVENTS = 400_000
CHEAP = ("q0", "q1", "q2", "q5", "q12")
"""Queries that take more events, for a run of about a second."""


def measure(plan: Plan) -> Iterator[Row]:
    events = list(nexmark_events(plan.size(2 * EVENTS, 3_000), CONFIG))
    rows = []
    for query in QUERIES.values():
        given = events if query.name in CHEAP else events[: len(events) // 2]
        (row,) = compare(_comparison(query, given), plan)
        rows.append(row)
        yield row
    names = f"nexmark, geometric mean of {len(rows)} queries"
    means = tuple(map(statistics.geometric_mean, zip(*(row.values for row in rows), strict=True)))
    each = statistics.geometric_mean([row.details["ns_per_record"] for row in rows])
    yield Row(names, "x loop", means, note=f"{each:.0f} ns for each event", against=BY_HAND)


def _comparison(query: Query, events: Sequence[Event]) -> Comparison:
    def build(flow: sw.Pipeline) -> sw.DataStream[object]:
        stream = flow.from_collection(events, timestamp=lambda event: event.date_time)
        return query.build(stream.assign_timestamps_and_watermarks(watermarks_of(CONFIG)))

    loop = Loop(LOOPS[query.name], events)

    def final() -> Sequence[object]:
        rows = query.final(loop.results())
        if query.name != "q12":
            reference = list(REFERENCE[query.name](events))
            check_same(f"nexmark {query.name}: the loop and the reference", reference, rows, in_order=False)
        return rows

    return Comparison(
        f"nexmark {query.name}, {query.title[0].lower()}{query.title[1:].partition(':')[0].partition(',')[0]}",
        len(events),
        Job(build, final=query.final),
        {BY_HAND: Way(final, loop.run)},
        in_order=False,
    )
