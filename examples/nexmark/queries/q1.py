"""Currency conversion: bids with their prices in euros."""

from typing import NamedTuple

import sluiceway as sw

from ..model import Bid, Event
from .common import all_of, bids_of

final = all_of


class BidInEuros(NamedTuple):
    """A bid, its price in hundredths of a euro."""

    auction: int
    bidder: int
    price: float
    date_time: int
    extra: str


def in_euros(bid: Bid) -> BidInEuros:
    return BidInEuros(bid.auction, bid.bidder, 0.908 * bid.price, bid.date_time, bid.extra)


def query(events: sw.DataStream[Event]) -> sw.DataStream[BidInEuros]:
    return bids_of(events).map(in_euros)
