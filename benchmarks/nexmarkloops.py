"""Reference loops of the Nexmark queries: streaming ones, written out by hand.

Each loop takes one event after the other and emits what the query does at the same moment: with each bid where the
answer is updated, when event time passes the end of a window, session or auction where it is not. It keeps what it
needs for that and no more. One thing the loops may assume that the pipelines may not: events come in the order of
their times. They therefore have no watermarks and no late events; and they have no key groups, state backends or
timers that could be part of a checkpoint.
"""

from __future__ import annotations

import time as clock
from bisect import bisect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

from examples.nexmark import Auction, Bid, Event, Person
from examples.nexmark.queries.days import day_of
from examples.nexmark.queries.q1 import BidInEuros
from examples.nexmark.queries.q2 import Price
from examples.nexmark.queries.q3 import LocalItem
from examples.nexmark.queries.q4 import Average
from examples.nexmark.queries.q5 import HotItem
from examples.nexmark.queries.q6 import SellersAverage
from examples.nexmark.queries.q8 import NewSeller
from examples.nexmark.queries.q11 import Session
from examples.nexmark.queries.q12 import BidsInWindow
from examples.nexmark.queries.q15 import Report as DayReport
from examples.nexmark.queries.q17 import Report
from examples.nexmark.queries.q19 import RankedBid
from examples.nexmark.queries.q20 import BidWithAuction
from examples.nexmark.queries.winning import Sale

from benchmarks.harness import Emit

__all__ = ["LOOPS"]

_WINDOW = 10_000
_SLIDE = 2_000


def q0(events: Iterable[Event], emit: Emit) -> None:
    for event in events:
        if type(event) is Bid:
            emit(event)


def q1(events: Iterable[Event], emit: Emit) -> None:
    for event in events:
        if type(event) is Bid:
            emit(BidInEuros(event.auction, event.bidder, 0.908 * event.price, event.date_time, event.extra))


def q2(events: Iterable[Event], emit: Emit) -> None:
    for event in events:
        if type(event) is Bid and event.auction % 123 == 0:
            emit(Price(event.auction, event.price))


def q3(events: Iterable[Event], emit: Emit) -> None:
    sellers: dict[int, Person] = {}
    waiting: defaultdict[int, list[Auction]] = defaultdict(list)
    for event in events:
        if type(event) is Auction:
            if event.category == 10:
                seller = sellers.get(event.seller)
                if seller is None:
                    waiting[event.seller].append(event)
                else:
                    emit(LocalItem(seller.name, seller.city, seller.state, event.id))
        elif type(event) is Person and event.state in ("OR", "ID", "CA"):
            sellers[event.id] = event
            for auction in waiting.pop(event.id, ()):
                emit(LocalItem(event.name, event.city, event.state, auction.id))


def q4(events: Iterable[Event], emit: Emit) -> None:
    totals: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for auction, bid in _sales(events):
        total = totals[auction.category]
        total[0] += bid.price
        total[1] += 1
        emit(Average(auction.category, total[0] // total[1]))


def q5(events: Iterable[Event], emit: Emit) -> None:
    slices: dict[int, Counter[int]] = {}
    current = end = 0

    def fire(end: int) -> None:
        counts: Counter[int] = Counter()
        for start in range(end - _WINDOW, end, _SLIDE):
            if start in slices:
                counts.update(slices[start])
        slices.pop(end - _WINDOW, None)
        most = max(counts.values(), default=0)
        for auction, bids in counts.items():
            if bids == most:
                emit(HotItem(auction, bids, end))

    for event in events:
        if type(event) is Bid:
            start = event.date_time - event.date_time % _SLIDE
            if start != current:
                end = end or start + _SLIDE
                while end <= start:
                    fire(end)
                    end += _SLIDE
                current = start
                slices[start] = Counter()
            slices[start][event.auction] += 1
    while slices:
        fire(end)
        end += _SLIDE


def q6(events: Iterable[Event], emit: Emit) -> None:
    closed: defaultdict[int, list[int]] = defaultdict(list)
    for auction, bid in _sales(events):
        prices = closed[auction.seller]
        prices.append(bid.price)
        del prices[:-10]
        emit(SellersAverage(auction.seller, sum(prices) // len(prices), auction.expires))


def q7(events: Iterable[Event], emit: Emit) -> None:
    highest: list[Bid] = []
    price, window = -1, 0
    for event in events:
        if type(event) is Bid:
            if event.date_time // _WINDOW != window:
                for bid in highest:
                    emit(bid)
                highest, price, window = [], -1, event.date_time // _WINDOW
            if event.price > price:
                highest, price = [event], event.price
            elif event.price == price:
                highest.append(event)
    for bid in highest:
        emit(bid)


def q8(events: Iterable[Event], emit: Emit) -> None:
    people: dict[int, Person] = {}
    sellers: set[int] = set()
    window = 0

    def fire() -> None:
        for person in people.values():
            if person.id in sellers:
                emit(NewSeller(person.id, person.name, window * _WINDOW))

    for event in events:
        if event.date_time // _WINDOW != window:
            fire()
            people.clear()
            sellers.clear()
            window = event.date_time // _WINDOW
        if type(event) is Auction:
            sellers.add(event.seller)
        elif type(event) is Person:
            people[event.id] = event
    fire()


def q9(events: Iterable[Event], emit: Emit) -> None:
    for sale in _sales(events):
        emit(Sale(*sale))


def q11(events: Iterable[Event], emit: Emit) -> None:
    # The bidder whose last bid is the oldest comes first.
    sessions: OrderedDict[int, list[int]] = OrderedDict()
    oldest = 0
    for event in events:
        if type(event) is Bid:
            time = event.date_time
            while sessions and oldest < time - _WINDOW:
                bidder = next(iter(sessions))
                oldest = sessions[bidder][2]
                if oldest < time - _WINDOW:
                    bids, start, last = sessions.pop(bidder)
                    emit(Session(bidder, bids, start, last + _WINDOW))
            session = sessions.get(event.bidder)
            if session is None:
                sessions[event.bidder] = [1, time, time]
            else:
                session[0] += 1
                session[2] = time
                sessions.move_to_end(event.bidder)
    for bidder, (bids, start, last) in sessions.items():
        emit(Session(bidder, bids, start, last + _WINDOW))


def q12(events: Iterable[Event], emit: Emit) -> None:
    counts: defaultdict[int, int] = defaultdict(int)
    now = clock.time
    end = (now() // 10 + 1) * 10
    for event in events:
        if type(event) is Bid:
            if now() >= end:
                for bidder, bids in counts.items():
                    emit(BidsInWindow(bidder, bids, end * 1_000 - _WINDOW, end * 1_000))
                counts.clear()
                end = (now() // 10 + 1) * 10
            counts[event.bidder] += 1
    for bidder, bids in counts.items():
        emit(BidsInWindow(bidder, bids, end * 1_000 - _WINDOW, end * 1_000))


def q15(events: Iterable[Event], emit: Emit) -> None:
    days: dict[str, tuple[list[int], list[set[int]], list[set[int]]]] = {}
    for event in events:
        if type(event) is Bid:
            day = day_of(event)
            if day not in days:
                days[day] = [0] * 4, [set(), set(), set(), set()], [set(), set(), set(), set()]
            bids, bidders, auctions = days[day]
            for rank in (0, 1 if event.price < 10_000 else 2 if event.price < 1_000_000 else 3):
                bids[rank] += 1
                bidders[rank].add(event.bidder)
                auctions[rank].add(event.auction)
            emit(DayReport(day, *bids, *map(len, bidders), *map(len, auctions)))


def q17(events: Iterable[Event], emit: Emit) -> None:
    reports: dict[tuple[int, str], list[int]] = {}
    for event in events:
        if type(event) is Bid:
            price = event.price
            key = event.auction, day_of(event)
            report = reports.get(key)
            if report is None:
                report = reports[key] = [0, 0, 0, 0, price, price, 0]
            report[0] += 1
            report[1 if price < 10_000 else 2 if price < 1_000_000 else 3] += 1
            if price < report[4]:
                report[4] = price
            elif price > report[5]:
                report[5] = price
            report[6] += price
            emit(Report(*key, *report[:6], report[6] // report[0], report[6]))


def q18(events: Iterable[Event], emit: Emit) -> None:
    latest: dict[tuple[int, int], Bid] = {}
    for event in events:
        if type(event) is Bid:
            key = event.bidder, event.auction
            last = latest.get(key)
            if last is None or (last.date_time, last.price) <= (event.date_time, event.price):
                latest[key] = event
                emit(event)


def q19(events: Iterable[Event], emit: Emit) -> None:
    best_of: defaultdict[int, list[Bid]] = defaultdict(list)
    for event in events:
        if type(event) is Bid:
            best = best_of[event.auction]
            place = bisect(best, (-event.price, event.date_time), key=_order)
            if place < 10:
                best.insert(place, event)
                del best[10:]
                for index in range(place, len(best)):
                    emit(RankedBid(best[index], index + 1))


def q20(events: Iterable[Event], emit: Emit) -> None:
    auctions: dict[int, Auction] = {}
    waiting: defaultdict[int, list[Bid]] = defaultdict(list)
    for event in events:
        if type(event) is Bid:
            auction = auctions.get(event.auction)
            if auction is None:
                waiting[event.auction].append(event)
            else:
                emit(BidWithAuction(event, auction))
        elif type(event) is Auction and event.category == 10:
            auctions[event.id] = event
            for bid in waiting.pop(event.id, ()):
                emit(BidWithAuction(bid, event))


LOOPS: Mapping[str, Callable[[Iterable[Event], Emit], None]] = {
    f.__name__: f for f in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q17, q18, q19, q20)
}


# ---- what several need ------------------------------------------------------------------------------------------


def _sales(events: Iterable[Event]) -> Iterator[tuple[Auction, Bid]]:
    """Each auction with its highest bid, the earlier of equal ones, once event time has passed its end."""
    auctions: dict[int, list[Any]] = {}
    ends: list[tuple[int, int]] = []
    early: list[Bid] = []
    for event in events:
        time = event.date_time
        while ends and ends[0][0] < time:
            auction, best = auctions.pop(heappop(ends)[1])
            if best is not None:
                yield auction, best
        if type(event) is Bid:
            open_ = auctions.get(event.auction)
            if open_ is None:
                # In order of time, only an auction of the same millisecond can still be the one of this bid.
                if early and early[0].date_time != time:
                    early = []
                early.append(event)
            elif open_[1] is None or event.price > open_[1].price:
                open_[1] = event
        elif type(event) is Auction:
            best = None
            for bid in early:
                if bid.auction == event.id and bid.date_time == time and (best is None or bid.price > best.price):
                    best = bid
            auctions[event.id] = [event, best]
            heappush(ends, (event.expires, event.id))
    while ends:
        auction, best = auctions.pop(heappop(ends)[1])
        if best is not None:
            yield auction, best


def _order(bid: Bid) -> tuple[int, int]:
    return -bid.price, bid.date_time
