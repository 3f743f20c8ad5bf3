"""The winning bid of each auction, as soon as it is closed: what queries 4, 6 and 9 begin with."""

from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw

from ..model import Auction, Bid, Event
from .common import auctions_of, bids_of

__all__ = ["Sale", "winning_bids"]


class Sale(NamedTuple):
    """A closed auction and its highest bid, the earlier one of equal ones."""

    auction: Auction
    bid: Bid


class CloseAuctions(sw.KeyedCoProcessFunction[int, Auction, Bid, Sale]):
    """Keeps the best bid of each open auction, and has a timer ring when the auction expires."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.auction = context.get_state(sw.ValueStateDescriptor("auction", Auction))
        self.best = context.get_state(sw.ValueStateDescriptor("best", Bid))
        # Records may come out of order: these are bids for an auction that is not known yet.
        self.early = context.get_list_state(sw.ListStateDescriptor("early", Bid))

    def process_element1(self, value: Auction, ctx: sw.KeyedCoProcessFunction.Context) -> None:
        self.auction.update(value)
        ctx.timer_service().register_event_time_timer(value.expires)
        for bid in self.early.get():
            self.consider(bid, value)
        self.early.clear()

    def process_element2(self, value: Bid, ctx: sw.KeyedCoProcessFunction.Context) -> None:
        auction = self.auction.value()
        if auction is not None:
            self.consider(value, auction)
        elif value.date_time > ctx.current_watermark():
            self.early.add(value)
            ctx.timer_service().register_event_time_timer(value.date_time)

    def on_timer(self, timestamp: int, ctx: sw.KeyedCoProcessFunction.OnTimerContext) -> Iterator[Sale]:
        auction = self.auction.value()
        if auction is None:
            # All auctions up to this time are known: a bid of this time is for none of them.
            self.early.update([bid for bid in self.early.get() if bid.date_time > timestamp])
        elif timestamp == auction.expires:
            best = self.best.value()
            if best is not None:
                yield Sale(auction, best)
            self.auction.clear()
            self.best.clear()

    def consider(self, bid: Bid, auction: Auction) -> None:
        if auction.date_time <= bid.date_time <= auction.expires:
            best = self.best.value()
            if best is None or (-bid.price, bid.date_time) < (-best.price, best.date_time):
                self.best.update(bid)


def winning_bids(events: sw.DataStream[Event]) -> sw.DataStream[Sale]:
    """Sales, their timestamps the times at which the auctions expire."""
    return (
        auctions_of(events)
        .key_by(lambda auction: auction.id)
        .connect(bids_of(events).key_by(lambda bid: bid.auction))
        .process(CloseAuctions())
    )
