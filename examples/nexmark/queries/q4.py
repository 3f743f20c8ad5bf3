"""Average price: of the auctions closed so far in each category; anew whenever one is closed."""

from typing import NamedTuple

import sluiceway as sw

from ..model import Event
from .common import last_per
from .winning import Sale, winning_bids

final = last_per(lambda average: average.category)


class Average(NamedTuple):
    """Average final price in a category."""

    category: int
    price: int


class Total(NamedTuple):
    """The accumulator."""

    category: int = 0
    price: int = 0
    sales: int = 0


class AveragePrice(sw.AggregateFunction[Sale, Total, Average]):
    """Whole cents, as SQL has it."""

    def create_accumulator(self) -> Total:
        return Total()

    def add(self, value: Sale, accumulator: Total) -> Total:
        return Total(value.auction.category, accumulator.price + value.bid.price, accumulator.sales + 1)

    def get_result(self, accumulator: Total) -> Average:
        return Average(accumulator.category, accumulator.price // accumulator.sales)


def query(events: sw.DataStream[Event]) -> sw.DataStream[Average]:
    return winning_bids(events).key_by(lambda sale: sale.auction.category).aggregate(AveragePrice())
