"""Every query says what the independent computation finds."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from examples.nexmark import (
    QUERIES,
    REFERENCE,
    Bid,
    Event,
    NexmarkConfig,
    events_of,
    nexmark_events,
    watermarks_of,
)
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.testing import EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, every_way

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[3]
BASE = NexmarkConfig().base_time

WORLDS = {
    # A second takes 100 events: windows of ten seconds are many, and midnight comes after 20 seconds.
    "slow": (3_000, NexmarkConfig(seed=1, events_per_second=100, base_time=BASE - 20_000)),
    "out of order": (3_000, NexmarkConfig(seed=2, events_per_second=100, out_of_order_group_size=500)),
    "fast": (3_010, NexmarkConfig(seed=3, in_flight_auctions=20, active_people=30)),
    "empty": (0, NexmarkConfig()),
}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_says_what_plain_loops_find(name: str, world: str, parallelism: int) -> None:
    count, config = WORLDS[world]
    expected = Counter(REFERENCE[name](list(nexmark_events(count, config))))
    pipeline = sw.Pipeline(name, parallelism=parallelism)
    query = QUERIES[name]
    results = query.build(events_of(pipeline, count, config)).collect()
    pipeline.run()
    got = Counter(query.final(results))
    assert got - expected == Counter(), "in excess"
    assert expected - got == Counter(), "missing"
    assert count == 0 or sum(expected.values()) > 0, "a world in which the query has no answer tests nothing"


@pytest.mark.parametrize(
    "name", [name for name in QUERIES if name not in ("q4", "q12", "q15", "q17", "q18", "q19")]
)
def test_a_query_says_the_same_however_its_events_come(name: str) -> None:
    """In every size of batches, at other parallelisms, stopped and restored after every event.

    The others say things again as they change: how often, depends on how events of one time come.
    """
    config = NexmarkConfig(events_per_second=1, bids=6, in_flight_auctions=6, active_people=4, seed=4)
    events = list(nexmark_events(40, config))

    def program(stream: sw.DataStream[Event]) -> sw.DataStream[Any]:
        return QUERIES[name].build(stream.assign_timestamps_and_watermarks(watermarks_of(config)))

    times = [event.date_time for event in events]
    results = every_way(program, events, timestamps=times, ordered=False, parallelism=(3,))
    assert Counter(results) == Counter(REFERENCE[name](events))


@pytest.mark.parametrize("name", ["q4", "q6", "q7", "q9", "q18", "q19"])
def test_equal_prices_are_told_apart_as_agreed(name: str) -> None:
    config = NexmarkConfig(active_people=3, in_flight_auctions=5)
    events = [
        event._replace(price=event.price % 3) if isinstance(event, Bid) else event
        for event in nexmark_events(2_000, config)
    ]
    pipeline = sw.Pipeline(name)
    stream = pipeline.from_collection(events, timestamp=lambda event: event.date_time)
    results = QUERIES[name].build(stream.assign_timestamps_and_watermarks(watermarks_of(config))).collect()
    pipeline.run()
    assert Counter(QUERIES[name].final(results)) == Counter(REFERENCE[name](events))


def test_q12_goes_by_the_clock() -> None:
    first, second, third = (Bid(1, bidder, 100, "", "", 0, "") for bidder in (7, 8, 7))
    source, sink = TestSource([first, second, PAUSE, third, PAUSE, third, EOF]), CollectingSink()
    flow = sw.Pipeline("q12")
    QUERIES["q12"].build(flow.source(source)).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run().advance(9_000)
        source.resume()
        assert sink.values == []
        harness.advance(1_000)
        assert sorted(sink.values) == [(7, 2, 0, 10_000), (8, 1, 0, 10_000)]
        source.resume()
        harness.run_to_end()
        assert sink.values[2:] == [(7, 1, 10_000, 20_000)]


def test_there_is_an_independent_computation_for_each() -> None:
    assert list(QUERIES) == [name for name in REFERENCE if name in QUERIES]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )


def test_the_runner() -> None:
    done = run("examples.nexmark", "q2", "--events", "3000", "--parallelism", "2", "--assert", "--print")
    assert (done.returncode, done.stderr) == (0, "")
    *results, summary, verdict = done.stdout.splitlines()
    assert len(results) == 4
    assert results[0].startswith("Price(auction=1107, price=")
    assert summary.startswith("q2, Selection: bids for every 123rd auction, and their prices: 4 results from 3000")
    assert verdict == "right: 4 answers"


def test_the_runner_lists_the_queries() -> None:
    done = run("examples.nexmark", "--help")
    assert done.returncode == 0
    for query in QUERIES.values():
        assert f"  {query.name:4} {query.title}" in done.stdout.splitlines()


def test_the_command_line() -> None:
    done = run("sluiceway", "run", "--quiet", "examples.nexmark", "q2", "--events", "3000")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4
