"""The queries in columns answer what those of records do, and what DuckDB finds in the same events."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples.nexmark import QUERIES, REFERENCE, Bid, Event, NexmarkConfig, nexmark_events, watermarks_of
from examples.nexmark.columns import COLUMN_QUERIES, NOT_IN_COLUMNS, events_in, table_of
from patience import PATIENT_S

import sluiceway as sw

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
BASE = NexmarkConfig().base_time
WORLDS = {
    # A second takes 100 events: windows of ten seconds are many, and midnight comes after 10 seconds.
    "slow": (2_000, NexmarkConfig(seed=1, events_per_second=100, base_time=BASE - 10_000)),
    "out of order": (2_000, NexmarkConfig(seed=2, events_per_second=100, out_of_order_group_size=500)),
    "fast": (1_010, NexmarkConfig(seed=3, in_flight_auctions=20, active_people=30)),
    "empty": (0, NexmarkConfig()),
}
BATCHES = {1: 1_024, 2: 3}
"""Records in a batch by parallelism; a batch has up to 64 times as many rows."""


def answers(name: str, events: list[Event], config: NexmarkConfig, **options: Any) -> Counter[Any]:
    flow = sw.Pipeline(name)
    query = COLUMN_QUERIES[name]
    return Counter(query.answers(query.build(events_in(flow, table_of(events), config)).to_arrow(**options)))


@pytest.mark.parametrize("parallelism", BATCHES)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", COLUMN_QUERIES)
def test_a_query_in_columns_says_what_that_of_records_does(name: str, world: str, parallelism: int) -> None:
    count, config = WORLDS[world]
    events = list(nexmark_events(count, config))
    flow = sw.Pipeline(name)
    stream = flow.from_collection(events, timestamp=lambda event: event.date_time)
    results = QUERIES[name].build(stream.assign_timestamps_and_watermarks(watermarks_of(config))).collect()
    flow.run()
    expected = Counter(QUERIES[name].final(results))
    got = answers(name, events, config, parallelism=parallelism, batch_size=BATCHES[parallelism])
    assert got == expected == Counter(REFERENCE[name](events))
    assert expected or not count or (name, world) == ("q2", "fast"), "nothing was compared"


def test_equal_prices_are_all_told() -> None:
    config = NexmarkConfig(active_people=3, in_flight_auctions=5)
    events = [
        event._replace(price=event.price % 3) if isinstance(event, Bid) else event
        for event in nexmark_events(2_000, config)
    ]
    assert answers("q7", events, config) == Counter(REFERENCE["q7"](events))


def test_each_query_is_in_columns_or_has_a_reason() -> None:
    assert {*COLUMN_QUERIES, *NOT_IN_COLUMNS} == set(QUERIES)
    assert not set(COLUMN_QUERIES).intersection(NOT_IN_COLUMNS)


WINDOW = "date_time // 10000 * 10000"
BY_DUCKDB = {
    "q0": "SELECT * FROM bid",
    "q1": "SELECT auction, bidder, 0.908::DOUBLE * price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')
    """,
    "q7": f"""
        WITH highest AS (SELECT {WINDOW} AS start, max(price) AS price FROM bid GROUP BY start)
        SELECT bid.* FROM bid JOIN highest ON {WINDOW} = start AND bid.price = highest.price
    """,
    "q8": """
        SELECT DISTINCT person.id, name, person.date_time // 10000 * 10000 FROM person JOIN auction
        ON seller = person.id AND person.date_time // 10000 = auction.date_time // 10000
    """,
    "q17": """
        SELECT auction, strftime(make_timestamp(date_time * 1000), '%Y-%m-%d') AS day, count(*),
            count(*) FILTER (price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000),
            count(*) FILTER (price >= 1000000), min(price), max(price),
            (sum(price) // count(*))::BIGINT, sum(price)::BIGINT
        FROM bid GROUP BY auction, day
    """,
}


@pytest.mark.parametrize("name", BY_DUCKDB)
def test_duckdb_finds_the_same(name: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    count, config = WORLDS["slow"]
    events = list(nexmark_events(count, config))
    table = table_of(events)
    with duckdb.connect() as connection:
        for kind in ("person", "auction", "bid"):
            rows: Any = table.column(kind).combine_chunks().drop_null()
            connection.register(kind, pa.Table.from_struct_array(rows))
        found = Counter(connection.execute(BY_DUCKDB[name]).fetchall())
    assert found
    assert answers(name, events, config) == found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.nexmark", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S, check=False)


def test_the_runner() -> None:
    done = run("q2", "--columns", "--events", "3000", "--parallelism", "2", "--assert")
    assert (done.returncode, done.stderr) == (0, "")
    summary, verdict = done.stdout.splitlines()
    assert summary.startswith("q2, Selection: bids for every 123rd auction, and their prices: 4 results from 3000")
    assert verdict == "right: 4 answers"


def test_the_runner_says_why_a_query_is_not_in_columns() -> None:
    done = run("q12", "--columns")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "q12 is not in columns: it needs windows of processing time; columns have those of event time\n"
    )
