"""The independent computation, on so few events that one can do it by hand."""

from collections.abc import Sequence

import pytest
from examples.nexmark import REFERENCE, Auction, Bid, Event, Person

pytestmark = pytest.mark.docs

DAY = 86_400_000


def person(number: int, time: int, state: str = "OR") -> Person:
    return Person(number, f"p{number}", "", "", "Bend", state, time, "")


def auction(number: int, time: int, expires: int, seller: int = 1, category: int = 10) -> Auction:
    return Auction(number, "", "", 0, 0, time, expires, seller, category, "")


def bid(auction: int, time: int, price: int = 100, bidder: int = 1) -> Bid:
    return Bid(auction, bidder, price, "", "", time, "")


def ask(query: str, *events: Event) -> Sequence[object]:
    forth, back = list(REFERENCE[query](events)), list(REFERENCE[query](events[::-1]))
    assert sorted(map(repr, forth)) == sorted(map(repr, back)), "the order of events must not matter"
    return forth


def test_q2() -> None:
    assert ask("q2", bid(122, 0), bid(123, 0, 7), bid(246, 0, 8)) == [(123, 7), (246, 8)]


def test_q3() -> None:
    events = [person(1, 0), person(2, 0, "WA"), auction(5, 1, 9, 1), auction(6, 1, 9, 2), auction(7, 1, 9, 1, 11)]
    assert ask("q3", *events) == [("p1", "Bend", "OR", 5)]


def test_winning_bids_are_the_highest_in_time_and_of_equal_ones_the_first() -> None:
    a, b = auction(5, 10, 20), auction(6, 10, 20)
    early, late = bid(5, 9, 900), bid(5, 21, 900)
    first, again, low = bid(5, 11, 500), bid(5, 12, 500), bid(5, 20, 499)
    assert ask("q9", a, b, early, late, first, again, low) == [(a, first)]


def test_q4_is_a_whole_number() -> None:
    events = [auction(5, 0, 9), auction(6, 0, 9), auction(7, 0, 9, category=11)]
    assert ask("q4", *events, bid(5, 1, 100), bid(6, 1, 101), bid(7, 1, 3)) == [(10, 100), (11, 3)]


def test_q5_counts_a_bid_in_five_windows() -> None:
    assert ask("q5", bid(5, 10_000), bid(5, 11_999), bid(6, 12_000)) == [
        (5, 2, 20_000), (5, 2, 18_000), (5, 2, 16_000), (5, 2, 14_000), (5, 2, 12_000), (6, 1, 22_000)
    ]  # fmt: skip
    assert ask("q5", bid(5, 0), bid(6, 0))[:2] == [(5, 1, 10_000), (6, 1, 10_000)]


def test_q6_looks_back_over_ten() -> None:
    events: list[Event] = []
    for n in range(12):
        events += [auction(n, 0, 100 + n, seller=3), bid(n, 1, 10 * n)]
    answers = ask("q6", *events)
    assert answers[:3] == [(3, 0, 100), (3, 5, 101), (3, 10, 102)]
    assert answers[-2:] == [(3, 55, 110), (3, 65, 111)]


def test_q7() -> None:
    high, equal, low, other = bid(1, 0, 9), bid(2, 9_999, 9), bid(3, 1, 8), bid(4, 10_000, 1)
    assert ask("q7", high, equal, low, other) == [high, equal, other]


def test_q8_says_it_once() -> None:
    events = [
        person(1, 10_000),
        auction(5, 19_999, 0, 1),
        auction(6, 19_999, 0, 1),
        person(2, 0),
        auction(7, 10_000, 0, 2),
    ]
    assert ask("q8", *events) == [(1, "p1", 10_000)]


def test_q11_a_gap_of_ten_seconds_ends_no_session() -> None:
    assert ask("q11", bid(1, 0), bid(1, 10_000), bid(1, 20_001)) == [(1, 2, 0, 20_000), (1, 1, 20_001, 30_001)]


def test_q15_and_q17() -> None:
    bids = [bid(1, 0, 9_999, 1), bid(1, 1, 10_000, 2), bid(2, 2, 1_000_000, 2), bid(2, DAY, 5, 1)]
    assert ask("q15", *bids) == [
        ("1970-01-01", 3, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1),
        ("1970-01-02", 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0),
    ]
    assert ask("q17", *bids[:2]) == [(1, "1970-01-01", 2, 1, 1, 0, 9_999, 10_000, 9_999, 19_999)]


def test_q18() -> None:
    assert ask("q18", bid(1, 5), bid(1, 7), bid(1, 6), bid(2, 1)) == [bid(2, 1), bid(1, 7)]


def test_q19() -> None:
    bids = [bid(1, time, price) for time, price in enumerate([5, 9, 1, 2, 3, 4, 6, 7, 8, 9, 10])]
    assert [(b.price, b.date_time, rank) for b, rank in ask("q19", *bids)] == [
        (10, 10, 1), (9, 1, 2), (9, 9, 3), (8, 8, 4), (7, 7, 5),
        (6, 6, 6), (5, 0, 7), (4, 5, 8), (3, 4, 9), (2, 3, 10),
    ]  # fmt: skip


def test_q20() -> None:
    wanted, other = auction(5, 5, 9), auction(6, 5, 9, category=11)
    early, late = bid(5, 0), bid(5, 99)
    assert ask("q20", wanted, other, early, late, bid(6, 7), bid(7, 7)) == [(early, wanted), (late, wanted)]
