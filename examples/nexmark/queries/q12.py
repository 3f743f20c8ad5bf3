"""Processing time: how many bids a bidder makes in ten seconds by the clock on the wall."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import TimeWindow, TumblingProcessingTimeWindows

from ..model import Event
from .common import bids_of
from .counting import Count


class BidsInWindow(NamedTuple):
    """Times are those of the machine, in ms since the epoch."""

    bidder: int
    bids: int
    start: int
    end: int


def final(results: Iterable[BidsInWindow]) -> list[tuple[int, int]]:
    """Bids per bidder over all windows: in which window a bid falls is another matter with each run."""
    total: Counter[int] = Counter()
    for result in results:
        total[result.bidder] += result.bids
    return list(total.items())


def count_of_window(bidder: int, window: TimeWindow, counts: Sequence[int]) -> list[BidsInWindow]:
    return [BidsInWindow(bidder, counts[0], window.start, window.end)]


def query(events: sw.DataStream[Event]) -> sw.DataStream[BidsInWindow]:
    return (
        bids_of(events)
        .key_by(lambda bid: bid.bidder)
        .window(TumblingProcessingTimeWindows.of("10s"))
        .aggregate(Count(), count_of_window)
    )
