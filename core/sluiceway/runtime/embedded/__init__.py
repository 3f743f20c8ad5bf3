"""Subtasks driven by hand: for engines whose dataflow is not ours."""

from sluiceway.runtime.embedded.chain import EmbeddedChain, Position
from sluiceway.runtime.embedded.plan import EmbeddedPlan

__all__ = ["EmbeddedChain", "EmbeddedPlan", "Position"]
