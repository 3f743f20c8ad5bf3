"""Local items: who sells in Oregon, Idaho or California in category 10, and which auctions."""

from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw

from ..model import Auction, Event, Person
from .common import all_of, auctions_of, people_of

final = all_of


class LocalItem(NamedTuple):
    """An auction, and where its seller lives."""

    name: str
    city: str
    state: str
    auction: int


class JoinSellers(sw.KeyedCoProcessFunction[int, Auction, Person, LocalItem]):
    """An auction that comes before its seller waits; a seller is remembered for all auctions to come."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.seller = context.get_state(sw.ValueStateDescriptor("seller", Person))
        self.waiting = context.get_list_state(sw.ListStateDescriptor("waiting", Auction))

    def process_element1(self, value: Auction, ctx: sw.KeyedCoProcessFunction.Context) -> Iterator[LocalItem]:
        seller = self.seller.value()
        if seller is None:
            self.waiting.add(value)
        else:
            yield _item(seller, value)

    def process_element2(self, value: Person, ctx: sw.KeyedCoProcessFunction.Context) -> Iterator[LocalItem]:
        self.seller.update(value)
        for auction in self.waiting.get():
            yield _item(value, auction)
        self.waiting.clear()


def _item(seller: Person, auction: Auction) -> LocalItem:
    return LocalItem(seller.name, seller.city, seller.state, auction.id)


def query(events: sw.DataStream[Event]) -> sw.DataStream[LocalItem]:
    auctions = auctions_of(events).filter(lambda auction: auction.category == 10)
    sellers = people_of(events).filter(lambda person: person.state in ("OR", "ID", "CA"))
    return (
        auctions.key_by(lambda auction: auction.seller)
        .connect(sellers.key_by(lambda person: person.id))
        .process(JoinSellers())
    )
