"""The queries in columns, as far as these can say them; they take the same events and have the same answers.

An event is a row with its time and three structs, of which one is not null, as in Flink's tables of Nexmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_type_hints

import narwhals as nw
import pyarrow as pa

import sluiceway as sw
from sluiceway.table import TableStream, agg, col, lit, when
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

from .generator import NexmarkConfig
from .model import Auction, Bid, Event, Person
from .queries import QUERIES
from .run import watermarks_of

__all__ = ["COLUMN_QUERIES", "NOT_IN_COLUMNS", "ColumnQuery", "EventTables", "events_in", "table_of"]

NOT_IN_COLUMNS: Mapping[str, str] = {
    "q4": "needs a window for each auction that ends with it; windows in columns are of one length",
    "q6": "needs the winning bids of q9",
    "q9": "needs the row with the greatest price of each auction; aggregates have the greatest value only",
    "q12": "needs windows of processing time; columns have those of event time",
    "q18": "needs the row with the latest time and, of these, the highest price; aggregates go by one column",
    "q19": "needs the ten highest bids anew with each bid; top_k has no running results",
}
"""The queries that columns cannot say, and why."""

_KINDS: Mapping[type, str] = {Person: "person", Auction: "auction", Bid: "bid"}


def _struct_of(kind: type) -> pa.DataType:
    return pa.struct(
        [(name, pa.int64() if of is int else pa.string()) for name, of in get_type_hints(kind).items()]
    )


_SCHEMA = pa.schema(
    [
        pa.field("date_time", pa.int64(), nullable=False),
        *(pa.field(name, _struct_of(kind)) for kind, name in _KINDS.items()),
    ]
)
_EVER = timedelta(days=36_500)
"""Longer than any run: joins of q3 and q20 remember everything, as the record forms do."""


@dataclass(frozen=True)
class EventTables:
    """A stream of events, and the streams of each kind of them.

    Attributes:
        events: rows of the structs ``person``, ``auction`` and ``bid``, of which one is not null.
    """

    events: TableStream

    @property
    def people(self) -> TableStream:
        """The people alone."""
        return self._only("person")

    @property
    def auctions(self) -> TableStream:
        """The auctions alone."""
        return self._only("auction")

    @property
    def bids(self) -> TableStream:
        """The bids alone."""
        return self._only("bid")

    def _only(self, kind: str) -> TableStream:
        return self.events.select(kind).filter(~col(kind).is_null()).unnest(kind)


@dataclass(frozen=True)
class ColumnQuery:
    """A query in columns.

    Attributes:
        name: as in ``q5``.
        build: adds its steps to the events.
        answers: what its rows come to in the end, as tuples like those of the query of that name.
    """

    name: str
    build: Callable[[EventTables], TableStream]
    answers: Callable[[pa.Table], list[Any]]


def table_of(events: Sequence[Event]) -> pa.Table:
    """Return events as a table, in their order."""
    columns: dict[str, list[Any]] = {"date_time": [event.date_time for event in events]}
    for kind, name in _KINDS.items():
        columns[name] = [event._asdict() if type(event) is kind else None for event in events]
    return pa.table(columns, _SCHEMA)


def events_in(pipeline: sw.Pipeline, table: pa.Table, config: NexmarkConfig) -> EventTables:
    """Return the events of a table as a stream, with their times and with watermarks."""
    strategy = watermarks_of(config).with_timestamp_column("date_time")
    return EventTables(pipeline.table(table, watermark_strategy=strategy))


# ---- the queries ------------------------------------------------------------------------------------------------


def q0(events: EventTables) -> TableStream:
    return events.bids


def q1(events: EventTables) -> TableStream:
    price = col("price") * 0.908
    return events.bids.select("auction", "bidder", "date_time", "extra", price=price)


def q2(events: EventTables) -> TableStream:
    return events.bids.filter(col("auction") % 123 == 0).select("auction", "price")


def q3(events: EventTables) -> TableStream:
    auctions = events.auctions.filter(col("category") == 10).select("id", "seller")
    local = (col("state") == "OR") | (col("state") == "ID") | (col("state") == "CA")
    people = events.people.filter(local).select("name", "city", "state", seller="id")
    return auctions.key_by("seller").interval_join(people.key_by("seller"), -_EVER, _EVER)


def q5(events: EventTables) -> TableStream:
    windows = events.bids.key_by("auction").window(SlidingEventTimeWindows("10s", "2s"))
    counts = windows.aggregate(bids=agg.count()).select("auction", "bids", end="window_end")
    most = counts.key_by("end").window(TumblingEventTimeWindows("2s")).aggregate(most=agg.max("bids"))
    both = counts.key_by("end").interval_join(most.select("end", "most").key_by("end"), 0, 0)
    return both.filter(col("bids") == col("most")).select("auction", "bids", "end")


def q7(events: EventTables) -> TableStream:
    bids = events.bids
    windows = TumblingEventTimeWindows("10s")
    # First per auction, by all subtasks; what is left for the one subtask that has to see everything is little.
    of_auctions = bids.key_by("auction").window(windows).aggregate(price=agg.max("price"))
    of_all = of_auctions.select("price", all=lit(0)).key_by("all").window(windows)
    highest = of_all.aggregate(price=agg.max("price")).select("price", end="window_end")
    pairs = bids.key_by("price").interval_join(highest.key_by("price"), 0, "10s")
    in_window = (col("date_time") // 10_000 + 1) * 10_000 == col("end").dt.timestamp("ms")
    return pairs.filter(in_window).select(*Bid._fields)


def q8(events: EventTables) -> TableStream:
    windows = TumblingEventTimeWindows("10s")
    start = col("date_time") // 10_000 * 10_000
    people = events.people.with_columns(start=start).select("id", "name", "start")
    sellers = events.auctions.with_columns(start=start).select("seller", "start")
    first_auctions = sellers.key_by("seller", "start").window(windows).distinct()
    return people.key_by("id", "start").interval_join(first_auctions.key_by("seller", "start"), "-10s", "10s")


def q11(events: EventTables) -> TableStream:
    sessions = events.bids.key_by("bidder").window(EventTimeSessionWindows.with_gap("10s"))
    return sessions.aggregate(bids=agg.count())


_RANKS = {
    "rank1": col("price") < 10_000,
    "rank2": (col("price") >= 10_000) & (col("price") < 1_000_000),
    "rank3": col("price") >= 1_000_000,
}
"""As in ``queries/days.py``."""


def _with_day(bids: TableStream) -> TableStream:
    day = (col("date_time") * 1_000).cast(nw.Datetime("us")).dt.to_string("%Y-%m-%d")
    return bids.with_columns(day=day, **{name: rank.cast(nw.Int64) for name, rank in _RANKS.items()})


def q15(events: EventTables) -> TableStream:
    bids = _with_day(events.bids.select("auction", "bidder", "price", "date_time"))
    each = {"bidders": "bidder", "auctions": "auction"}
    of_rank = {
        f"{rank}_{many}": when(col(rank) == 1).then(col(one)) for many, one in each.items() for rank in _RANKS
    }
    reports = {"total_bids": agg.count(), **{f"{rank}_bids": agg.sum(rank) for rank in _RANKS}}
    for many, one in each.items():
        reports[f"total_{many}"] = agg.count_distinct(one)
        reports |= {f"{rank}_{many}": agg.count_distinct(f"of_{rank}_{many}") for rank in _RANKS}
    wide = bids.with_columns(**{f"of_{name}": value for name, value in of_rank.items()})
    return wide.key_by("day").running(**reports).select("day", *reports)


def q17(events: EventTables) -> TableStream:
    bids = _with_day(events.bids.select("auction", "price", "date_time"))
    reports = {
        "total_bids": agg.count(),
        **{f"{rank}_bids": agg.sum(rank) for rank in _RANKS},
        "min_price": agg.min("price"),
        "max_price": agg.max("price"),
        "sum_price": agg.sum("price"),
    }
    days = bids.key_by("auction", "day").running(**reports)
    return days.select("auction", "day", *reports, avg_price=col("sum_price") // col("total_bids"))


def q20(events: EventTables) -> TableStream:
    auctions = events.auctions.filter(col("category") == 10)
    bids = events.bids.key_by("auction")
    return bids.interval_join(auctions.key_by("id"), -_EVER, _EVER, suffix="_of_auction")


# ---- answers ----------------------------------------------------------------------------------------------------


def _rows(*names: str) -> Callable[[pa.Table], list[Any]]:
    def rows(table: pa.Table) -> list[Any]:
        columns: list[Any] = []
        for name in names:
            column: Any = table.column(name)
            stamps = pa.types.is_timestamp(column.type)
            columns.append((column.cast(pa.int64()) if stamps else column).to_pylist())
        return list(zip(*columns, strict=True))

    return rows


def _last_of(keys: int, *names: str) -> Callable[[pa.Table], list[Any]]:
    """For queries whose later rows take the place of earlier ones with equal first columns."""
    rows = _rows(*names)
    return lambda table: list({row[:keys]: row for row in rows(table)}.values())


def _bids_with_auctions(table: pa.Table) -> list[Any]:
    names = {"id": "auction", "date_time": "date_time_of_auction", "extra": "extra_of_auction"}
    bids = _rows(*Bid._fields)(table)
    auctions = _rows(*(names.get(name, name) for name in Auction._fields))(table)
    return list(zip(bids, auctions, strict=True))


_DAY_COLUMNS = [f"{rank}_{many}" for many in ("bids", "bidders", "auctions") for rank in ("total", *_RANKS)]
_QUERIES: Iterable[tuple[Callable[[EventTables], TableStream], Callable[[pa.Table], list[Any]]]] = [
    (q0, _rows(*Bid._fields)),
    (q1, _rows("auction", "bidder", "price", "date_time", "extra")),
    (q2, _rows("auction", "price")),
    (q3, _rows("name", "city", "state", "id")),
    (q5, _rows("auction", "bids", "end")),
    (q7, _rows(*Bid._fields)),
    (q8, _rows("id", "name", "start")),
    (q11, _rows("bidder", "bids", "window_start", "window_end")),
    (q15, _last_of(1, "day", *_DAY_COLUMNS)),
    (
        q17,
        _last_of(
            2,
            "auction",
            "day",
            "total_bids",
            *(f"{rank}_bids" for rank in _RANKS),
            "min_price",
            "max_price",
            "avg_price",
            "sum_price",
        ),
    ),
    (q20, _bids_with_auctions),
]

COLUMN_QUERIES: Mapping[str, ColumnQuery] = {
    build.__name__: ColumnQuery(build.__name__, build, answers) for build, answers in _QUERIES
}

assert {*COLUMN_QUERIES, *NOT_IN_COLUMNS} == set(QUERIES)
