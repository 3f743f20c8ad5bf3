"""Nexmark: an auction house, its events and the questions that people ask about them, as benchmarks like them.

Run a query::

    python -m examples.nexmark q5 --events 100000 [--columns] [--assert]
    sluiceway run examples.nexmark q5 --events 1000
"""

from .generator import NexmarkConfig, NexmarkGenerator, nexmark_events
from .model import Auction, Bid, Event, Person
from .queries import QUERIES, Query
from .reference import REFERENCE
from .run import events_of, flow, watermarks_of
from .source import NexmarkSource

__all__ = [
    "QUERIES",
    "REFERENCE",
    "Auction",
    "Bid",
    "Event",
    "NexmarkConfig",
    "NexmarkGenerator",
    "NexmarkSource",
    "Person",
    "Query",
    "events_of",
    "flow",
    "nexmark_events",
    "watermarks_of",
]
