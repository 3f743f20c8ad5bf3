"""Winning bids: each auction with its highest bid, when it is closed."""

import sluiceway as sw

from ..model import Event
from .common import all_of
from .winning import Sale, winning_bids

final = all_of


def query(events: sw.DataStream[Event]) -> sw.DataStream[Sale]:
    return winning_bids(events)
