"""Common parts of the queries: streams of one kind of event, and final results of changing ones."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import sluiceway as sw

from ..model import Auction, Bid, Event, Person

__all__ = ["all_of", "auctions_of", "bids_of", "last_per", "people_of"]

R = TypeVar("R")


def people_of(events: sw.DataStream[Event]) -> sw.DataStream[Person]:
    """The people alone."""
    return events.filter(lambda event: isinstance(event, Person)).name("people").returns(Person)


def auctions_of(events: sw.DataStream[Event]) -> sw.DataStream[Auction]:
    """The auctions alone."""
    return events.filter(lambda event: isinstance(event, Auction)).name("auctions").returns(Auction)


def bids_of(events: sw.DataStream[Event]) -> sw.DataStream[Bid]:
    """The bids alone."""
    return events.filter(lambda event: isinstance(event, Bid)).name("bids").returns(Bid)


def all_of(results: Iterable[R]) -> list[R]:
    """For queries whose every result stands."""
    return list(results)


def last_per(key: Callable[[Any], Hashable]) -> Callable[[Iterable[R]], list[R]]:
    """For queries whose later results take the place of earlier ones with the same ``key``."""

    def last(results: Iterable[R]) -> list[R]:
        return list({key(result): result for result in results}.values())

    return last
