"""Selling prices: the average of each seller's last ten closed auctions; anew whenever one is closed."""

from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw

from ..model import Event
from .common import all_of
from .winning import Sale, winning_bids

final = all_of


class SellersAverage(NamedTuple):
    """Average final price of a seller's last ten auctions when one of them closed, at ``time``."""

    seller: int
    price: int
    time: int


class LastTen(sw.KeyedProcessFunction[int, Sale, SellersAverage]):
    """Sales come from several subtasks. They wait here for the watermark, which brings them into order."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.waiting = context.get_map_state(sw.MapStateDescriptor("waiting", list[Sale], key_type=int))
        self.prices = context.get_state(sw.ValueStateDescriptor("prices", list[int]))

    def process_element(self, value: Sale, ctx: sw.KeyedProcessFunction.Context) -> None:
        time = value.auction.expires
        self.waiting.put(time, [*(self.waiting.get(time) or []), value])
        ctx.timer_service().register_event_time_timer(time)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterator[SellersAverage]:
        prices = self.prices.value() or []
        for sale in sorted(self.waiting.get(timestamp) or [], key=lambda sale: sale.auction.id):
            prices = [*prices[-9:], sale.bid.price]
            yield SellersAverage(sale.auction.seller, sum(prices) // len(prices), timestamp)
        self.prices.update(prices)
        self.waiting.remove(timestamp)


def query(events: sw.DataStream[Event]) -> sw.DataStream[SellersAverage]:
    return winning_bids(events).key_by(lambda sale: sale.auction.seller).process(LastTen())
