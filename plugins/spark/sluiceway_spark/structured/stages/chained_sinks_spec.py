"""Specification of the sinks that are chained to one stage, sent to the tasks of Spark."""

# Spark imports this before a query begins, in a process for which it waits 10 s: nothing else is imported here.
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ChainedSinksSpec"]


class ChainedSinksSpec(NamedTuple):
    """Sinks that are chained to one stage; picklable.

    Attributes:
        location: path or URL of the directory of the run.
        producers: the subtasks that give records to a sink subtask, by the sink's target.
    """

    location: str
    producers: Mapping[int, frozenset[int]]
