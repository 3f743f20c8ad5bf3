"""Bids with their auctions, where these are of category 10."""

from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw

from ..model import Auction, Bid, Event
from .common import all_of, auctions_of, bids_of

final = all_of


class BidWithAuction(NamedTuple):
    """A bid and what it is for."""

    bid: Bid
    auction: Auction


class JoinAuctions(sw.KeyedCoProcessFunction[int, Bid, Auction, BidWithAuction]):
    """Without bounds in time: everything is remembered, whichever comes first."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.auction = context.get_state(sw.ValueStateDescriptor("auction", Auction))
        self.waiting = context.get_list_state(sw.ListStateDescriptor("waiting", Bid))

    def process_element1(self, value: Bid, ctx: sw.KeyedCoProcessFunction.Context) -> Iterator[BidWithAuction]:
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(value)
        else:
            yield BidWithAuction(value, auction)

    def process_element2(self, value: Auction, ctx: sw.KeyedCoProcessFunction.Context) -> Iterator[BidWithAuction]:
        self.auction.update(value)
        for bid in self.waiting.get():
            yield BidWithAuction(bid, value)
        self.waiting.clear()


def query(events: sw.DataStream[Event]) -> sw.DataStream[BidWithAuction]:
    auctions = auctions_of(events).filter(lambda auction: auction.category == 10)
    return (
        bids_of(events)
        .key_by(lambda bid: bid.auction)
        .connect(auctions.key_by(lambda auction: auction.id))
        .process(JoinAuctions())
    )
