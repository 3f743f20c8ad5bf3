"""Hot items: the auctions with the most bids in the last ten seconds, every two seconds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import SlidingEventTimeWindows, TimeWindow, TumblingEventTimeWindows

from ..model import Event
from .common import all_of, bids_of
from .counting import Count

final = all_of


class HotItem(NamedTuple):
    """Number of bids of an auction in the ten seconds before ``end``."""

    auction: int
    bids: int
    end: int


def count_of_window(auction: int, window: TimeWindow, counts: Sequence[int]) -> list[HotItem]:
    return [HotItem(auction, counts[0], window.end)]


def hottest(end: int, window: TimeWindow, items: Sequence[HotItem]) -> Iterator[HotItem]:
    most = max(item.bids for item in items)
    return (item for item in items if item.bids == most)


def query(events: sw.DataStream[Event]) -> sw.DataStream[HotItem]:
    counts = (
        bids_of(events)
        .key_by(lambda bid: bid.auction)
        .window(SlidingEventTimeWindows.of("10s", "2s"))
        .aggregate(Count(), count_of_window)
    )
    # What comes out of a window has its last millisecond as timestamp: all counts of one window meet again.
    return counts.key_by(lambda item: item.end).window(TumblingEventTimeWindows.of("2s")).apply(hottest)
