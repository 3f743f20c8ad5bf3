"""Bidding statistics: bids, bidders and auctions of a day, in all and by price; anew with each bid."""

from dataclasses import dataclass, field
from typing import NamedTuple

import sluiceway as sw

from ..model import Bid, Event
from .common import bids_of, last_per
from .days import day_of, rank_of

final = last_per(lambda report: report.day)


class Report(NamedTuple):
    """A day so far; the ranks are those of :func:`rank_of`."""

    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    total_bidders: int
    rank1_bidders: int
    rank2_bidders: int
    rank3_bidders: int
    total_auctions: int
    rank1_auctions: int
    rank2_auctions: int
    rank3_auctions: int


def _four_sets() -> list[set[int]]:
    return [set(), set(), set(), set()]


@dataclass
class Day:
    """All that a report needs to know; index 0 is for all bids, 1 to 3 for those of a rank."""

    day: str = ""
    bids: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    bidders: list[set[int]] = field(default_factory=_four_sets)
    auctions: list[set[int]] = field(default_factory=_four_sets)


class DailyReport(sw.AggregateFunction[Bid, Day, Report]):
    """Counts, also what is distinct."""

    def create_accumulator(self) -> Day:
        return Day()

    def add(self, value: Bid, accumulator: Day) -> Day:
        accumulator.day = day_of(value)
        for rank in (0, rank_of(value)):
            accumulator.bids[rank] += 1
            accumulator.bidders[rank].add(value.bidder)
            accumulator.auctions[rank].add(value.auction)
        return accumulator

    def get_result(self, accumulator: Day) -> Report:
        bidders, auctions = map(len, accumulator.bidders), map(len, accumulator.auctions)
        return Report(accumulator.day, *accumulator.bids, *bidders, *auctions)


def query(events: sw.DataStream[Event]) -> sw.DataStream[Report]:
    return bids_of(events).key_by(day_of).aggregate(DailyReport())
