"""Auctions close when event time comes to their ends, whatever comes first, and nothing is remembered longer."""

import pytest
from examples.nexmark import Auction, Bid
from examples.nexmark.queries.winning import CloseAuctions, Sale

import sluiceway as sw
from sluiceway.testing import TwoInputOperatorHarness

pytestmark = pytest.mark.docs


def auction(time: int, expires: int) -> Auction:
    return Auction(5, "", "", 0, 0, time, expires, 1, 10, "")


def bid(time: int, price: int) -> Bid:
    return Bid(5, 7, price, "", "", time, "")


def close(auctions: sw.DataStream[Auction], bids: sw.DataStream[Bid]) -> sw.DataStream[Sale]:
    return (
        auctions.connect(bids).key_by(lambda auction: auction.id, lambda bid: bid.auction).process(CloseAuctions())
    )


def both(harness: TwoInputOperatorHarness, watermark: int) -> list[Sale]:
    return [*harness.process_watermark1(watermark), *harness.process_watermark2(watermark)]


def remembered(harness: TwoInputOperatorHarness) -> int:
    return sum(len(s.keyed.groups) for s in harness.snapshot().operators if s.keyed is not None)


def test_it_is_closed_when_both_streams_have_come_to_its_end() -> None:
    with TwoInputOperatorHarness(close) as harness:
        harness.process1(auction(10, 20), 10)
        harness.process2(bid(20, 300), 20)
        assert harness.process_watermark1(99) == []
        assert harness.process_watermark2(19) == []
        assert harness.process_watermark2(20) == [Sale(auction(10, 20), bid(20, 300))]
        assert remembered(harness) == 0


def test_bids_that_come_before_their_auction_count() -> None:
    with TwoInputOperatorHarness(close) as harness:
        both(harness, 5)
        harness.process2(bid(10, 300), 10)
        harness.process2(bid(9, 900), 9)
        harness.process1(auction(10, 20), 10)
        assert both(harness, 20) == [Sale(auction(10, 20), bid(10, 300))]
        assert remembered(harness) == 0


def test_bids_for_no_auction_are_forgotten_when_none_can_come_any_more() -> None:
    with TwoInputOperatorHarness(close) as harness:
        harness.process2(bid(10, 300), 10)
        harness.process2(bid(12, 300), 12)
        both(harness, 11)
        assert remembered(harness) == 1
        harness.process2(bid(11, 900), 11)  # late
        both(harness, 12)
        assert remembered(harness) == 0
        harness.process2(bid(12, 900), 12)
        assert remembered(harness) == 0


def test_an_auction_without_a_bid_in_time_is_no_sale() -> None:
    with TwoInputOperatorHarness(close) as harness:
        harness.process1(auction(10, 20), 10)
        harness.process2(bid(21, 300), 21)
        assert both(harness, 30) == []
        assert remembered(harness) == 0
