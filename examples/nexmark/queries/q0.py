"""Pass through: all bids as they are."""

import sluiceway as sw

from ..model import Bid, Event
from .common import all_of, bids_of

final = all_of


def query(events: sw.DataStream[Event]) -> sw.DataStream[Bid]:
    return bids_of(events)
