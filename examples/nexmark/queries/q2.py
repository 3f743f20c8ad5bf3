"""Selection: bids for every 123rd auction, and their prices."""

from typing import NamedTuple

import sluiceway as sw

from ..model import Event
from .common import all_of, bids_of

final = all_of


class Price(NamedTuple):
    """Price offered for an auction."""

    auction: int
    price: int


def query(events: sw.DataStream[Event]) -> sw.DataStream[Price]:
    return (
        bids_of(events).filter(lambda bid: bid.auction % 123 == 0).map(lambda bid: Price(bid.auction, bid.price))
    )
