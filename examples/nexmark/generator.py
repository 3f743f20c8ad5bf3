"""The events of Nexmark, made from a seed: the same ones every time, in whatever pieces they are asked for.

The world is that of the published generator: out of 50 events one is a new person, three are new auctions and 46
are bids. Half of the bids go to one auction, which changes every hundred auctions; three quarters of them come
from one bidder, and three quarters of the auctions are of one seller, who change every hundred people. Other bids
go to one of the last hundred auctions, or to one that comes into being a little later.

An *epoch* is 50 events. All that is random in one comes from the seed and the number of the epoch, so an epoch
can be made without those before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from random import Random

from .model import Auction, Bid, Event, Person

__all__ = [
    "FIRST_AUCTION",
    "FIRST_CATEGORY",
    "FIRST_PERSON",
    "NexmarkConfig",
    "NexmarkGenerator",
    "nexmark_events",
]

FIRST_PERSON = 1000
FIRST_AUCTION = 1000
FIRST_CATEGORY = 10

_CATEGORIES = 5
_HOT_EVERY = 100  # a hot person or auction stays so until this many more have come
_LEAD = 10  # bids and auctions name people and auctions up to this far ahead of the last one

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_FIRST_NAMES = ("Ann", "Bert", "Cleo", "Dirk", "Edda", "Finn", "Gus", "Hanna", "Ivo", "Jule", "Kai")
_LAST_NAMES = ("Adler", "Brook", "Carter", "Dale", "Ebert", "Field", "Grove", "Hill", "Irving")
_HOT_CHANNELS = ("Apple", "Baidu", "Facebook", "Google")
_CHANNELS = 10_000


@dataclass(frozen=True)
class NexmarkConfig:
    """Parameters of the events. The defaults are the published ones, except the time of the first event.

    Attributes:
        seed: another one gives other events.
        base_time: time of the first event, in ms since the epoch.
        events_per_second: how fast event time goes.
        people, auctions, bids: how many of each there are in an epoch.
        hot_seller_ratio: one auction in so many is not of the hot seller.
        hot_auction_ratio: one bid in so many is not for the hot auction.
        hot_bidder_ratio: one bid in so many is not by the hot bidder.
        hot_channel_ratio: one bid in so many does not come through one of four channels.
        active_people: so many people, the latest ones, sell and bid.
        in_flight_auctions: about so many auctions are open at any time.
        person_bytes, auction_bytes, bid_bytes: average sizes, which the field ``extra`` fills up.
        out_of_order_group_size: 1: events come in the order of their times. Else a number of whole epochs: so
            many events at a time come in any order.
    """

    seed: int = 1
    base_time: int = 1_436_918_400_000  # 2015-07-15, 0 o'clock UTC
    events_per_second: int = 10_000
    people: int = 1
    auctions: int = 3
    bids: int = 46
    hot_seller_ratio: int = 4
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_channel_ratio: int = 2
    active_people: int = 1000
    in_flight_auctions: int = 100
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    out_of_order_group_size: int = 1

    def __post_init__(self) -> None:
        group, epoch = self.out_of_order_group_size, self.epoch_size
        if group < 1 or (group > 1 and group % epoch):
            raise ValueError(f"out_of_order_group_size={group} must be 1 or a multiple of {epoch}")

    @property
    def epoch_size(self) -> int:
        """Events in an epoch."""
        return self.people + self.auctions + self.bids

    @property
    def group_epochs(self) -> int:
        """Epochs that are shuffled together; 1 where nothing is."""
        return max(1, self.out_of_order_group_size // self.epoch_size)

    @property
    def out_of_orderness_ms(self) -> int:
        """Return the maximum delay of an event behind a later one."""
        group = self.out_of_order_group_size
        return 0 if group == 1 else -(-group * 1000 // self.events_per_second)

    def time_of(self, number: int) -> int:
        """Return the time of event ``number`` in ms since the epoch."""
        return self.base_time + number * 1000 // self.events_per_second


class NexmarkGenerator:
    """Makes events, an epoch at a time.

    Args:
        config: what they are like.
    """

    def __init__(self, config: NexmarkConfig | None = None) -> None:
        self.config = config or NexmarkConfig()

    def group(self, number: int) -> list[Event]:
        """The events of a group of epochs, in the order in which they come."""
        if self.config.out_of_order_group_size == 1:
            return self.epoch(number)
        epochs = self.config.group_epochs
        events = [event for i in range(epochs) for event in self.epoch(number * epochs + i)]
        random = self._random(number, 1)
        return sorted(events, key=lambda event: random.random())

    def epoch(self, number: int) -> list[Event]:
        """The events of an epoch: people, then auctions, then bids."""
        config = self.config
        random = self._random(number, 0)
        first = number * config.epoch_size
        events: list[Event] = []
        for i in range(config.people):
            events.append(self._person(random, config.time_of(first + i), number * config.people + i))
        last_person = (number + 1) * config.people - 1
        first += config.people
        for i in range(config.auctions):
            last_auction = number * config.auctions + i
            events.append(self._auction(random, config.time_of(first + i), last_auction, last_person))
        last_auction = (number + 1) * config.auctions - 1
        first += config.auctions
        self._add_bids(events, random, first, last_auction, last_person)
        return events

    # ---- one of each --------------------------------------------------------------------------------------

    def _person(self, random: Random, time: int, index: int) -> Person:
        name = f"{_pick(random, _FIRST_NAMES)} {_pick(random, _LAST_NAMES)}"
        email = f"{self._words(random, 7)}@{self._words(random, 5)}.example"
        card = " ".join(f"{_below(random, 10_000):04}" for _ in range(4))
        city, state = _pick(random, _CITIES), _pick(random, _STATES)
        size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
        extra = self._extra(random, self.config.person_bytes - size)
        return Person(FIRST_PERSON + index, name, email, card, city, state, time, extra)

    def _auction(self, random: Random, time: int, index: int, last_person: int) -> Auction:
        config = self.config
        if _below(random, config.hot_seller_ratio):
            seller = last_person // _HOT_EVERY * _HOT_EVERY
        else:
            seller = self._active_person(random, last_person)
        price = _price(random)
        # It lasts as long, on average, as it takes until as many auctions as are open at a time have begun.
        events = config.in_flight_auctions * config.epoch_size // config.auctions
        lasts = 1 + _below(random, max(1, 2 * events * 1000 // config.events_per_second))
        name, description = self._words(random, 20), self._words(random, 100)
        return Auction(
            FIRST_AUCTION + index,
            name,
            description,
            price,
            price + _price(random),
            time,
            time + lasts,
            FIRST_PERSON + seller,
            FIRST_CATEGORY + _below(random, _CATEGORIES),
            self._extra(random, config.auction_bytes - 48 - len(name) - len(description)),
        )

    def _add_bids(
        self, events: list[Event], random: Random, first: int, last_auction: int, last_person: int
    ) -> None:
        config = self.config
        hot_auction = FIRST_AUCTION + last_auction // _HOT_EVERY * _HOT_EVERY
        # The second of its hundred: the first one is the hot seller.
        hot_bidder = FIRST_PERSON + last_person // _HOT_EVERY * _HOT_EVERY + 1
        oldest = max(0, last_auction - config.in_flight_auctions)
        open_auctions = last_auction - oldest + 1 + _LEAD
        for number in range(first, first + config.bids):
            if _below(random, config.hot_auction_ratio):
                auction = hot_auction
            else:
                auction = FIRST_AUCTION + oldest + _below(random, open_auctions)
            if _below(random, config.hot_bidder_ratio):
                bidder = hot_bidder
            else:
                bidder = FIRST_PERSON + self._active_person(random, last_person)
            price = _price(random)
            if _below(random, config.hot_channel_ratio):
                channel = _pick(random, _HOT_CHANNELS)
                url = f"https://auction.example/{channel}/{auction}"
            else:
                channel = f"channel-{_below(random, _CHANNELS)}"
                url = f"https://auction.example/item?channel={channel}"
            extra = self._extra(random, config.bid_bytes - 32)
            events.append(Bid(auction, bidder, price, channel, url, config.time_of(number), extra))

    # ---- parts --------------------------------------------------------------------------------------------

    def _active_person(self, random: Random, last_person: int) -> int:
        people = last_person + 1
        active = min(people, self.config.active_people)
        return people - active + _below(random, active + _LEAD)

    def _random(self, number: int, purpose: int) -> Random:
        return Random((self.config.seed << 64) + (number << 1) + purpose)

    @cached_property
    def _text(self) -> str:
        """Return the text of which all texts are slices: far cheaper than a random number for each letter."""
        random = Random(self.config.seed)
        return "".join(chr(ord("a") + _below(random, 26)) for _ in range(1 << 14))

    def _words(self, random: Random, longest: int) -> str:
        length = 3 + _below(random, longest - 2)
        start = _below(random, len(self._text) - length)
        return self._text[start : start + length]

    def _extra(self, random: Random, average: int) -> str:
        if average <= 0:
            return ""
        spread = average // 5
        length = average - spread + _below(random, 2 * spread + 1)
        start = _below(random, len(self._text) - length)
        return self._text[start : start + length]


def nexmark_events(count: int, config: NexmarkConfig | None = None) -> Iterator[Event]:
    """The first ``count`` events, in the order in which they come."""
    generator = NexmarkGenerator(config)
    size = generator.config.epoch_size * generator.config.group_epochs
    groups = range(-(-count // size))
    return islice((event for number in groups for event in generator.group(number)), count)


# random() is the one method of Random whose results are promised to stay the same with every version of Python.


def _below(random: Random, bound: int) -> int:
    return int(random.random() * bound)


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return choices[int(random.random() * len(choices))]


def _price(random: Random) -> int:
    """In cents: as many between one and ten dollars as between ten and a hundred, and so on up to a million."""
    return round(10 ** (random.random() * 6) * 100)
