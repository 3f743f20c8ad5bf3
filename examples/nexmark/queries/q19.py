"""Top ten: the ten highest bids for each auction; whatever changes its rank comes anew."""

from bisect import bisect
from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw

from ..model import Bid, Event
from .common import bids_of, last_per

final = last_per(lambda ranked: (ranked.bid.auction, ranked.rank))


class RankedBid(NamedTuple):
    """A bid and its place, 1 to 10, among those for its auction."""

    bid: Bid
    rank: int


class TopTen(sw.KeyedProcessFunction[int, Bid, RankedBid]):
    """Keeps the best ten of each auction."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.best = context.get_state(sw.ValueStateDescriptor("best", list[Bid]))

    def process_element(self, value: Bid, ctx: sw.KeyedProcessFunction.Context) -> Iterator[RankedBid]:
        best = self.best.value() or []
        place = bisect(best, _order(value), key=_order)
        if place < 10:
            best = [*best[:place], value, *best[place:9]]
            self.best.update(best)
            for index in range(place, len(best)):
                yield RankedBid(best[index], index + 1)


def _order(bid: Bid) -> tuple[int, int]:
    return -bid.price, bid.date_time


def query(events: sw.DataStream[Event]) -> sw.DataStream[RankedBid]:
    return bids_of(events).key_by(lambda bid: bid.auction).process(TopTen())
