"""New users: people who registered and began an auction within the same ten seconds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows

from ..model import Auction, Event, Person
from .common import all_of, auctions_of, people_of

final = all_of


class NewSeller(NamedTuple):
    """Somebody who did both in the ten seconds from ``start`` on."""

    person: int
    name: str
    start: int


def new_sellers(people: Sequence[Person], auctions: Sequence[Auction]) -> Iterator[NewSeller]:
    if auctions:
        for person in people:
            yield NewSeller(person.id, person.name, person.date_time // 10_000 * 10_000)


def query(events: sw.DataStream[Event]) -> sw.DataStream[NewSeller]:
    return (
        people_of(events)
        .co_group(auctions_of(events))
        .where(lambda person: person.id)
        .equal_to(lambda auction: auction.seller)
        .window(TumblingEventTimeWindows.of("10s"))
        .apply(new_sellers)
    )
