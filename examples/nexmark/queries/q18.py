"""Last bids: the latest bid of each bidder for each auction; anew whenever there is a later one."""

from collections.abc import Iterator

import sluiceway as sw

from ..model import Bid, Event
from .common import bids_of, last_per

final = last_per(lambda bid: (bid.bidder, bid.auction))


class Latest(sw.KeyedProcessFunction[tuple[int, int], Bid, Bid]):
    """Remembers the latest bid of each key, and lets no earlier one through."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.latest = context.get_state(sw.ValueStateDescriptor("latest", Bid))

    def process_element(self, value: Bid, ctx: sw.KeyedProcessFunction.Context) -> Iterator[Bid]:
        latest = self.latest.value()
        # The higher of two in one millisecond, so that the answer does not depend on which comes first.
        if latest is None or (latest.date_time, latest.price) <= (value.date_time, value.price):
            self.latest.update(value)
            yield value


def query(events: sw.DataStream[Event]) -> sw.DataStream[Bid]:
    return bids_of(events).key_by(lambda bid: (bid.bidder, bid.auction)).process(Latest())
