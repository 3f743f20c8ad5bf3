"""Functions that handle timers, told from those that do not."""

from __future__ import annotations

from typing import Final

from sluiceway.functions.batches import KeyedBatchProcessFunction
from sluiceway.functions.broadcast import KeyedBroadcastProcessFunction
from sluiceway.functions.co import KeyedCoProcessFunction
from sluiceway.functions.process import KeyedProcessFunction

__all__ = ["handles_timers"]

_NOTHING: Final = (
    None,
    KeyedProcessFunction.on_timer,
    KeyedCoProcessFunction.on_timer,
    KeyedBroadcastProcessFunction.on_timer,
    KeyedBatchProcessFunction.on_timer,
)
"""``on_timer`` of functions that handle no timers; None: they have none."""


def handles_timers(function: object) -> bool:
    """Return whether a function has an ``on_timer`` of its own."""
    return getattr(type(function), "on_timer", None) not in _NOTHING
