"""The three kinds of event: somebody registers, an auction begins, somebody bids."""

from typing import NamedTuple, TypeAlias

__all__ = ["Auction", "Bid", "Event", "Person"]


class Person(NamedTuple):
    """Somebody who sells and bids. Times are in ms since the epoch, here and below."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(NamedTuple):
    """An item for sale until ``expires``; prices are in cents."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(NamedTuple):
    """An offer for an item."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


Event: TypeAlias = Person | Auction | Bid
