"""Checks of watermark strategies, at the line where the user passes them."""

from __future__ import annotations

from typing import Any

from sluiceway.api.arguments import check_function, describe
from sluiceway.api.location import caller_location
from sluiceway.errors import GraphError
from sluiceway.eventtime import TimestampAssigner, WatermarkStrategy, takes_record_timestamp

__all__ = ["check_strategy"]


def check_strategy(method: str, strategy: object, *, at_source: bool) -> WatermarkStrategy[Any]:
    """``strategy`` if it can be used there.

    Args:
        method: what it was given to, for messages.
        strategy: what the user gave.
        at_source: whether that is a source.

    Raises:
        TypeError: not a strategy, or its assigner cannot be called with a record.
        GraphError: it wants what only sources can do.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise TypeError(
            f"{method} at {caller_location()} takes a WatermarkStrategy, as in "
            f"WatermarkStrategy.for_bounded_out_of_orderness('5s'), not {describe(strategy)}"
        )
    assigner: Any = strategy.assigner
    if assigner is not None:
        arguments = 2 if takes_record_timestamp(assigner) else 1  # Flink's has the timestamp so far, too
        check_function("with_timestamp_assigner", assigner, (TimestampAssigner,), arguments)
    if strategy.alignment is not None and not at_source:
        raise GraphError(
            f"{method} at {caller_location()}: only a source can wait for others (with_watermark_alignment); give "
            "the strategy to the source: source(..., watermark_strategy=...)"
        )
    return strategy
