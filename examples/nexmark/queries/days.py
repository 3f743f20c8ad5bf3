"""By day and by price: what queries 15 and 17 report by."""

from datetime import date, timedelta
from functools import lru_cache

from ..model import Bid

__all__ = ["day_of", "rank_of"]

_DAY_MS = 86_400_000


def day_of(bid: Bid) -> str:
    """The day on which it was made, as in 2015-07-15."""
    return _day(bid.date_time // _DAY_MS)


@lru_cache
def _day(number: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=number))


def rank_of(bid: Bid) -> int:
    """1 below 100 dollars, 2 below 10,000 dollars, 3 from there on."""
    return 1 if bid.price < 10_000 else 2 if bid.price < 1_000_000 else 3
