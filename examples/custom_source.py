"""A source of one's own: a calendar that is read year by year, by several readers at once.

Run it::

    sluiceway run examples/custom_source.py
    python examples/custom_source.py [--assert]
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import sluiceway as sw
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
)


@dataclass(frozen=True)
class Year:
    """A split: what one reader reads at a time, with the position to go on from."""

    year: int
    next_day: int = 0

    @property
    def split_id(self) -> str:
        return str(self.year)


class Calendar(Source[date]):
    """The days of some years. A source is a description: it opens nothing."""

    def __init__(self, years: Sequence[int]) -> None:
        self.years = years

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        return date

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """There is one per job. It hands the splits out to readers that ask for one."""
        return SimpleEnumerator(context, [Year(y) for y in self.years] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> "CalendarReader":
        """There is one per subtask."""
        return CalendarReader(context)


class CalendarReader(SimpleReader[date]):
    """Reads a year after the other. None of its methods may block."""

    def open_split(self, split: Year) -> None:
        self.split = split

    def read(self, limit: int) -> Poll[date]:
        first = date(self.split.year, 1, 1) + timedelta(days=self.split.next_day)
        left = (date(self.split.year + 1, 1, 1) - first).days
        count = min(limit, left)
        if count == 0:
            return END_OF_INPUT
        self.split = replace(self.split, next_day=self.split.next_day + count)
        return [first + timedelta(days=n) for n in range(count)]

    def position(self) -> Year:
        return self.split

    def close_split(self) -> None:
        """Nothing was opened."""


flow = sw.Pipeline("fridays the 13th", parallelism=2)
counts = (
    flow.source(Calendar(range(2020, 2030)))
    .uid("calendar")
    .filter(lambda day: day.day == 13 and day.weekday() == 4)
    .key_by(lambda day: day.year)
    .count()
    .uid("per year")
)
counts.print()
seen = counts.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert sum(count == 1 for _, count in seen) == 10
        assert max(seen, key=lambda pair: pair[1]) == (2026, 3)
        assert len(seen) == 16
