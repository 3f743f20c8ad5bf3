"""Sessions: how many bids a bidder made before a pause of more than ten seconds."""

from collections.abc import Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import EventTimeSessionWindows, TimeWindow

from ..model import Event
from .common import all_of, bids_of
from .counting import Count

final = all_of


class Session(NamedTuple):
    """From the first bid until ten seconds after the last one."""

    bidder: int
    bids: int
    start: int
    end: int


def session(bidder: int, window: TimeWindow, counts: Sequence[int]) -> list[Session]:
    return [Session(bidder, counts[0], window.start, window.end)]


def query(events: sw.DataStream[Event]) -> sw.DataStream[Session]:
    return (
        bids_of(events)
        .key_by(lambda bid: bid.bidder)
        .window(EventTimeSessionWindows.with_gap("10s"))
        .aggregate(Count(), session)
    )
