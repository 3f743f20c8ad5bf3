"""Subtasks stepped by their caller, for engines that move the records themselves."""

from sluiceway.runtime.stepped.plan import SteppedPlan
from sluiceway.runtime.stepped.stepped_task import Position, SteppedTask

__all__ = ["Position", "SteppedPlan", "SteppedTask"]
