"""Highest bids: of every ten seconds, all that are equal."""

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows

from ..model import Bid, Event
from .common import all_of, bids_of

final = all_of


def higher(a: list[Bid], b: list[Bid]) -> list[Bid]:
    if a[0].price == b[0].price:
        return a + b
    return a if a[0].price > b[0].price else b


def query(events: sw.DataStream[Event]) -> sw.DataStream[Bid]:
    # First per auction, by all subtasks; what is left for the one subtask that has to see everything is little.
    of_auctions = (
        bids_of(events)
        .map(lambda bid: [bid])
        .key_by(lambda bids: bids[0].auction)
        .window(TumblingEventTimeWindows.of("10s"))
        .reduce(higher)
    )
    of_all = of_auctions.window_all(TumblingEventTimeWindows.of("10s")).reduce(higher)
    return of_all.flat_map(lambda bids: bids)
