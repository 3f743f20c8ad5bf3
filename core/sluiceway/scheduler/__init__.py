"""Scheduling: pipelined regions, slots, scheduling strategies and restart strategies. Pure."""

from sluiceway.scheduler.pipelined_region import pipelined_regions
from sluiceway.scheduler.restart_strategy import RestartStrategy, restart_strategy
from sluiceway.scheduler.slots import Slot, SlotPool, SlotSharing
from sluiceway.scheduler.strategies import SCHEDULERS, SchedulingStrategy, scheduling_strategy

__all__ = [
    "SCHEDULERS",
    "RestartStrategy",
    "SchedulingStrategy",
    "Slot",
    "SlotPool",
    "SlotSharing",
    "pipelined_regions",
    "restart_strategy",
    "scheduling_strategy",
]
