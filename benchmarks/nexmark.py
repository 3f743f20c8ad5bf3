"""The queries of Nexmark, in records and in columns, each against a streaming loop that is written out by hand.

``nexmarkloops.py`` says what the loops do and what they may assume. The answers are also compared with those of
``examples/nexmark/reference.py``, which looks at all events at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from examples.nexmark import QUERIES, REFERENCE, Event, NexmarkConfig, Query, nexmark_events, watermarks_of

import sluiceway as sw
from benchmarks.harness import Comparison, Job, Loop, Plan, Row, Side, Way, check_same, compare
from benchmarks.nexmarkloops import LOOPS
from sluiceway.connector.lib import DiscardSink

__all__ = ["BY_HAND", "measure"]

# A second takes so few events that there are windows enough.
CONFIG = NexmarkConfig(events_per_second=1_000)

BY_HAND = "a streaming loop written out by hand"

EVENTS = 400_000
CHEAP = ("q0", "q1", "q2", "q5", "q12")
"""Queries that take more events, for a run of about a second."""


def measure(plan: Plan) -> Iterator[Row]:
    events = list(nexmark_events(plan.size(2 * EVENTS, 3_000), CONFIG))
    in_records, in_columns = [], []
    has_columns = find_spec("pyarrow") is not None and find_spec("narwhals") is not None
    for query in QUERIES.values():
        given = events if query.name in CHEAP else events[: len(events) // 2]
        sides = {"": _in_records(query, given)}
        if has_columns and (side := _in_columns(query.name, given)) is not None:
            sides[", in columns"] = side
        for form, ours in sides.items():
            (row,) = compare(_comparison(query, given, form, ours), plan)
            (in_columns if form else in_records).append(row)
            yield row
    yield _mean(f"nexmark, geometric mean of {len(in_records)} queries", in_records)
    if in_columns:
        yield _mean(f"nexmark, geometric mean of {len(in_columns)} queries in columns", in_columns)


def _mean(name: str, rows: Sequence[Row]) -> Row:
    means = tuple(map(statistics.geometric_mean, zip(*(row.values for row in rows), strict=True)))
    each = statistics.geometric_mean([row.details["ns_per_record"] for row in rows])
    return Row(name, "x loop", means, note=f"{each:.0f} ns for each event", against=BY_HAND)


def _in_records(query: Query, events: Sequence[Event]) -> Side:
    def build(flow: sw.Pipeline) -> sw.DataStream[object]:
        stream = flow.from_collection(events, timestamp=lambda event: event.date_time)
        return query.build(stream.assign_timestamps_and_watermarks(watermarks_of(CONFIG)))

    return Job(build, final=query.final)


def _in_columns(name: str, events: Sequence[Event]) -> Side | None:
    """Return the query in columns, over a table of the events; None: columns cannot say it."""
    from examples.nexmark.columns import COLUMN_QUERIES, events_in, table_of

    query = COLUMN_QUERIES.get(name)
    if query is None:
        return None
    table = table_of(events)

    def build(flow: sw.Pipeline) -> Any:
        return query.build(events_in(flow, table, CONFIG))

    def run() -> None:
        flow = sw.Pipeline("benchmark")
        build(flow).sink(DiscardSink())
        flow.run()

    return Way(lambda: query.answers(build(sw.Pipeline("benchmark")).to_arrow()), run)


def _comparison(query: Query, events: Sequence[Event], form: str, ours: Side) -> Comparison:
    loop = Loop(LOOPS[query.name], events)

    def final() -> Sequence[object]:
        rows = query.final(loop.results())
        if query.name != "q12":
            reference = list(REFERENCE[query.name](events))
            check_same(f"nexmark {query.name}: the loop and the reference", reference, rows, in_order=False)
        return rows

    title = f"{query.title[0].lower()}{query.title[1:]}".partition(":")[0].partition(",")[0]
    return Comparison(
        f"nexmark {query.name}, {title}{form}",
        len(events),
        ours,
        {BY_HAND: Way(final, loop.run)},
        in_order=False,
    )
