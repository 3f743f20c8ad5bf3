"""Auction statistics: how many bids an auction had on a day, and their prices; anew with each bid."""

from typing import NamedTuple

import sluiceway as sw

from ..model import Bid, Event
from .common import bids_of, last_per
from .days import day_of, rank_of

final = last_per(lambda report: (report.auction, report.day))


class Report(NamedTuple):
    """A day of an auction so far; the ranks are those of :func:`rank_of`."""

    auction: int
    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    min_price: int
    max_price: int
    avg_price: int
    sum_price: int


def first_report(bid: Bid) -> Report:
    rank, price = rank_of(bid), bid.price
    ranks = (int(rank == 1), int(rank == 2), int(rank == 3))
    return Report(bid.auction, day_of(bid), 1, *ranks, price, price, price, price)


def combined(a: Report, b: Report) -> Report:
    count, price = a.total_bids + b.total_bids, a.sum_price + b.sum_price
    return Report(
        a.auction,
        a.day,
        count,
        a.rank1_bids + b.rank1_bids,
        a.rank2_bids + b.rank2_bids,
        a.rank3_bids + b.rank3_bids,
        min(a.min_price, b.min_price),
        max(a.max_price, b.max_price),
        price // count,
        price,
    )


def query(events: sw.DataStream[Event]) -> sw.DataStream[Report]:
    reports = bids_of(events).map(first_report)
    return reports.key_by(lambda report: (report.auction, report.day)).reduce(combined)
