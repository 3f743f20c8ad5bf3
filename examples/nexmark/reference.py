"""The answers, found by looking at all events at once: no streams, no windows, nothing but loops over lists.

Each function takes the events in any order, and returns what the query of that name must have said in the end.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from .model import Auction, Bid, Event, Person

__all__ = ["REFERENCE"]

Rows: TypeAlias = Iterable[tuple[Any, ...]]

_WINDOW = 10_000
_SLIDE = 2_000


def q0(events: Sequence[Event]) -> Rows:
    return _bids(events)


def q1(events: Sequence[Event]) -> Rows:
    for bid in _bids(events):
        yield bid.auction, bid.bidder, 0.908 * bid.price, bid.date_time, bid.extra


def q2(events: Sequence[Event]) -> Rows:
    return [(bid.auction, bid.price) for bid in _bids(events) if bid.auction % 123 == 0]


def q3(events: Sequence[Event]) -> Rows:
    people = _people(events)
    for auction in _auctions(events):
        seller = people.get(auction.seller)
        if auction.category == 10 and seller is not None and seller.state in ("OR", "ID", "CA"):
            yield seller.name, seller.city, seller.state, auction.id


def q4(events: Sequence[Event]) -> Rows:
    prices = defaultdict(list)
    for auction, bid in _winners(events):
        prices[auction.category].append(bid.price)
    return [(category, sum(all_) // len(all_)) for category, all_ in prices.items()]


def q5(events: Sequence[Event]) -> Rows:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in _bids(events):
        last = bid.date_time // _SLIDE * _SLIDE
        for start in range(last, last - _WINDOW, -_SLIDE):
            counts[start][bid.auction] += 1
    for start, of_auction in counts.items():
        most = max(of_auction.values())
        yield from ((auction, n, start + _WINDOW) for auction, n in of_auction.items() if n == most)


def q6(events: Sequence[Event]) -> Rows:
    closed: dict[int, list[int]] = defaultdict(list)
    for auction, bid in sorted(_winners(events), key=lambda pair: (pair[0].expires, pair[0].id)):
        prices = closed[auction.seller]
        prices.append(bid.price)
        latest = prices[-10:]
        yield auction.seller, sum(latest) // len(latest), auction.expires


def q7(events: Sequence[Event]) -> Rows:
    windows = defaultdict(list)
    for bid in _bids(events):
        windows[bid.date_time // _WINDOW].append(bid)
    for bids in windows.values():
        highest = max(bid.price for bid in bids)
        yield from (bid for bid in bids if bid.price == highest)


def q8(events: Sequence[Event]) -> Rows:
    sellers = {(auction.seller, auction.date_time // _WINDOW) for auction in _auctions(events)}
    for person in _people(events).values():
        window = person.date_time // _WINDOW
        if (person.id, window) in sellers:
            yield person.id, person.name, window * _WINDOW


def q9(events: Sequence[Event]) -> Rows:
    return _winners(events)


def q11(events: Sequence[Event]) -> Rows:
    times = defaultdict(list)
    for bid in _bids(events):
        times[bid.bidder].append(bid.date_time)
    for bidder, of_bidder in times.items():
        for session in _sessions(sorted(of_bidder), gap=_WINDOW):
            yield bidder, len(session), session[0], session[-1] + _WINDOW


def q12(events: Sequence[Event]) -> Rows:
    """Bids per bidder over all windows: in which window of processing time a bid comes, nobody can foretell."""
    return Counter(bid.bidder for bid in _bids(events)).items()


def q15(events: Sequence[Event]) -> Rows:
    days = defaultdict(list)
    for bid in _bids(events):
        days[_day(bid)].append(bid)
    for day, bids in days.items():
        ranks = [bids, *([bid for bid in bids if _rank(bid) == rank] for rank in (1, 2, 3))]
        yield (
            day,
            *(len(rank) for rank in ranks),
            *(len({bid.bidder for bid in rank}) for rank in ranks),
            *(len({bid.auction for bid in rank}) for rank in ranks),
        )


def q17(events: Sequence[Event]) -> Rows:
    bids_of = defaultdict(list)
    for bid in _bids(events):
        bids_of[bid.auction, _day(bid)].append(bid)
    for (auction, day), bids in bids_of.items():
        prices = [bid.price for bid in bids]
        ranks = Counter(map(_rank, bids))
        counts = len(bids), ranks[1], ranks[2], ranks[3]
        yield auction, day, *counts, min(prices), max(prices), sum(prices) // len(prices), sum(prices)


def q18(events: Sequence[Event]) -> Rows:
    last: dict[tuple[int, int], Bid] = {}
    for bid in sorted(_bids(events), key=lambda bid: (bid.date_time, bid.price)):
        last[bid.bidder, bid.auction] = bid
    return last.values()


def q19(events: Sequence[Event]) -> Rows:
    bids_of = defaultdict(list)
    for bid in _bids(events):
        bids_of[bid.auction].append(bid)
    for bids in bids_of.values():
        best = sorted(bids, key=lambda bid: (-bid.price, bid.date_time))[:10]
        yield from ((bid, rank) for rank, bid in enumerate(best, start=1))


def q20(events: Sequence[Event]) -> Rows:
    auctions = {auction.id: auction for auction in _auctions(events)}
    for bid in _bids(events):
        auction = auctions.get(bid.auction)
        if auction is not None and auction.category == 10:
            yield bid, auction


REFERENCE: Mapping[str, Callable[[Sequence[Event]], Rows]] = {
    f.__name__: f for f in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q17, q18, q19, q20)
}


# ---- what several need ------------------------------------------------------------------------------------


def _bids(events: Iterable[Event]) -> list[Bid]:
    return [event for event in events if isinstance(event, Bid)]


def _auctions(events: Iterable[Event]) -> list[Auction]:
    return [event for event in events if isinstance(event, Auction)]


def _people(events: Iterable[Event]) -> dict[int, Person]:
    return {event.id: event for event in events if isinstance(event, Person)}


def _winners(events: Sequence[Event]) -> Iterator[tuple[Auction, Bid]]:
    """Of each auction with a bid in time the highest one, the earlier of equal ones."""
    bids_for = defaultdict(list)
    for bid in _bids(events):
        bids_for[bid.auction].append(bid)
    for auction in _auctions(events):
        in_time = [bid for bid in bids_for[auction.id] if auction.date_time <= bid.date_time <= auction.expires]
        if in_time:
            yield auction, min(in_time, key=lambda bid: (-bid.price, bid.date_time))


def _sessions(times: list[int], gap: int) -> Iterator[list[int]]:
    session: list[int] = []
    for time in times:
        if session and time - session[-1] > gap:
            yield session
            session = []
        session.append(time)
    yield session


def _day(bid: Bid) -> str:
    return datetime.fromtimestamp(bid.date_time / 1000, UTC).date().isoformat()


def _rank(bid: Bid) -> int:
    return 1 if bid.price < 10_000 else 2 if bid.price < 1_000_000 else 3
