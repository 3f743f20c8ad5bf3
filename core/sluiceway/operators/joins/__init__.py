"""Operators that join two keyed streams."""

from sluiceway.operators.joins.asof import AsOfJoinOperator
from sluiceway.operators.joins.interval import IntervalJoinOperator

__all__ = ["AsOfJoinOperator", "IntervalJoinOperator"]
