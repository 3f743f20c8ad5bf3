"""The events are those that the published description asks for, and the same ones in every way of getting them."""

from collections import Counter
from functools import cache
from statistics import mean
from typing import Any

import pytest
from examples.nexmark import Auction, Bid, NexmarkConfig, NexmarkGenerator, NexmarkSource, Person, nexmark_events

from sluiceway.connector import Source
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver

pytestmark = pytest.mark.docs


@cache
def events() -> list[Any]:
    """Not made at import: every run imports this module, and few run its tests."""
    return list(nexmark_events(50_000))


@cache
def bids() -> list[Bid]:
    return [event for event in events() if isinstance(event, Bid)]


@cache
def auctions() -> list[Auction]:
    return [event for event in events() if isinstance(event, Auction)]


def share(count: int, of: int) -> Any:
    return pytest.approx(count / of, abs=0.02)


def test_one_person_three_auctions_46_bids() -> None:
    kinds = [Person, *[Auction] * 3, *[Bid] * 46]
    assert [type(event) for event in events()] == kinds * 1000


def test_ids_count_up() -> None:
    assert [event.id for event in events() if isinstance(event, Person)] == list(range(1000, 2000))
    assert [auction.id for auction in auctions()] == list(range(1000, 4000))


def test_times_go_by_the_rate() -> None:
    base = NexmarkConfig().base_time
    assert [event.date_time for event in events()[:21]] == [base] * 10 + [base + 1] * 10 + [base + 2]
    slow = NexmarkConfig(events_per_second=3, base_time=0)
    assert [event.date_time for event in nexmark_events(5, slow)] == [0, 333, 666, 1000, 1333]


def test_half_of_the_bids_are_for_the_hot_auction() -> None:
    hot = sum((bid.auction - 1000) % 100 == 0 for bid in bids())
    assert share(hot, len(bids())) == 1 / 2 + 1 / 2 / 111


def test_three_quarters_of_them_are_by_the_hot_bidder_and_of_auctions_of_the_hot_seller() -> None:
    assert share(sum((bid.bidder - 1000) % 100 == 1 for bid in bids()), len(bids())) == 3 / 4
    assert share(sum((auction.seller - 1000) % 100 == 0 for auction in auctions()), len(auctions())) == 3 / 4


def test_the_ratios_can_be_chosen() -> None:
    config = NexmarkConfig(hot_auction_ratio=1, hot_bidder_ratio=10, hot_channel_ratio=4)
    bids = [event for event in nexmark_events(20_000, config) if isinstance(event, Bid)]
    assert share(sum((bid.auction - 1000) % 100 == 0 for bid in bids), len(bids)) == 0.01
    assert share(sum((bid.bidder - 1000) % 100 == 1 for bid in bids), len(bids)) == 0.9
    assert share(sum(bid.channel in ("Apple", "Baidu", "Facebook", "Google") for bid in bids), len(bids)) == 0.75


def test_bids_are_for_auctions_of_now() -> None:
    """The last hundred and one, and ten that are still to come; but for the hot one, all equally often."""
    last = 0
    ages: Counter[int] = Counter()
    for event in events():
        if isinstance(event, Auction):
            last = event.id
        elif isinstance(event, Bid) and (event.auction - 1000) % 100 and last > 1200:
            ages[last - event.auction] += 1
    assert sorted(ages) == list(range(-10, 101))
    assert max(ages.values()) < 2 * min(ages.values())


def test_about_a_hundred_auctions_are_open() -> None:
    middle = events()[25_000].date_time
    assert sum(a.date_time <= middle <= a.expires for a in auctions()) == pytest.approx(100, rel=0.2)


def test_sellers_and_bidders_are_active_people_or_just_about_to_come() -> None:
    config = NexmarkConfig(active_people=20)
    newest = 0
    for event in nexmark_events(10_000, config):
        if isinstance(event, Person):
            newest = event.id
        else:
            who = event.seller if isinstance(event, Auction) else event.bidder
            hot = (newest - 1000) // 100 * 100 + 1000
            assert who in (hot, hot + 1) or max(1000, newest - 19) <= who <= newest + 10


def test_as_many_prices_between_one_and_ten_as_between_ten_and_a_hundred() -> None:
    digits = Counter(len(str(bid.price)) for bid in bids())
    assert all(share(digits[n], len(bids())) == 1 / 6 for n in range(3, 9))


def test_the_sizes_are_those_that_were_asked_for() -> None:
    text = ("item_name", "description", "extra")
    assert mean(48 + sum(len(getattr(a, f)) for f in text) for a in auctions()) == pytest.approx(500, rel=0.02)
    assert mean(32 + len(bid.extra) for bid in bids()) == pytest.approx(100, rel=0.02)
    without = nexmark_events(100, NexmarkConfig(person_bytes=0, auction_bytes=0, bid_bytes=0))
    assert {event.extra for event in without} == {""}


def test_a_seed_gives_the_same_events_each_time_and_another_one_others() -> None:
    assert list(nexmark_events(500)) == events()[:500]
    other = list(nexmark_events(500, NexmarkConfig(seed=2)))
    assert not set(other) & set(events()[:500])


def test_an_epoch_is_made_without_those_before_it() -> None:
    assert NexmarkGenerator().epoch(700) == events()[35_000:35_050]


def test_the_events_are_the_same_with_every_version_of_python() -> None:
    bid = events()[35_049]
    assert isinstance(bid, Bid)
    assert (bid.auction, bid.bidder, bid.price, bid.channel) == (3100, 1701, 1728, "channel-8481")


def test_shuffled_in_groups() -> None:
    config = NexmarkConfig(out_of_order_group_size=200)
    shuffled = list(nexmark_events(1000, config))
    for start in range(0, 1000, 200):
        assert set(shuffled[start : start + 200]) == set(events()[start : start + 200])
        assert shuffled[start : start + 200] != events()[start : start + 200]
    assert config.out_of_orderness_ms == 20
    highest = 0
    for event in shuffled:
        assert event.date_time > highest - config.out_of_orderness_ms
        highest = max(highest, event.date_time)
    assert NexmarkConfig().out_of_orderness_ms == 0


@pytest.mark.parametrize("size", [0, 49, 75])
def test_a_group_is_of_whole_epochs(size: int) -> None:
    with pytest.raises(ValueError, match=f"out_of_order_group_size={size} must be 1 or a multiple of 50"):
        NexmarkConfig(out_of_order_group_size=size)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count=-1 must be 0 or more"):
        NexmarkSource(-1)


class TestNexmarkSource(SourceConformance):
    """Events that end in the middle of an epoch."""

    config = NexmarkConfig(seed=3)
    ordered = True

    def make_source(self) -> Source[Any]:
        return NexmarkSource(1_130, self.config)

    def expected(self) -> list[Any]:
        return list(nexmark_events(1_130, self.config))


class TestShuffledNexmarkSource(TestNexmarkSource):
    config = NexmarkConfig(seed=3, out_of_order_group_size=150)


def test_a_reader_of_several_lanes_reads_them_side_by_side() -> None:
    """So that a job which goes on with fewer readers does not see times jump back and forth."""
    with SourceDriver(NexmarkSource(10_000), 3) as driver:
        driver.poll()
        snapshot = driver.snapshot()
        before = len(driver.all_records())
    with SourceDriver(NexmarkSource(10_000), 1, restored=snapshot) as driver:
        times = [event.date_time for event in driver.run()]
    assert len(times) == 10_000 - before
    assert times == sorted(times)
