"""Detection of saved state that a step's function no longer declares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sluiceway.errors import IncompatibleStateError
from sluiceway.functions.state_discovery import may_ask_for
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators.context import OperatorContext
from sluiceway.serializers import decode_blocks
from sluiceway.state import KeyedSnapshot, RowsOnDemand

__all__ = ["OF_FUNCTIONS", "check_claimed", "has_rows", "unclaimed"]

OF_FUNCTIONS: Final = frozenset(
    {"map", "flat_map", "filter", "branch", "process", "co_map", "co_flat_map", "co_process", "broadcast_process"}
)
"""Kinds of steps whose state is that of the users' functions, so that one may become another."""


def check_claimed(
    context: OperatorContext, saved: Sequence[KeyedSnapshot], declared: Collection[str], own: Collection[str]
) -> None:
    """Raise an error for saved state that the function has not declared by the end of ``open()``.

    Args:
        context: context of the step.
        saved: its keyed state.
        declared: the names of the states that were declared.
        own: the tables of the operator itself.

    Raises:
        IncompatibleStateError: names the step and the states.
    """
    settings, step = context.settings, context.node.step
    begins_with_checkpoint = settings.from_checkpoint is not None or settings.resume
    # A restart goes on with what this program has written itself; only the first attempt may meet another one's.
    if context.attempt or not begins_with_checkpoint or settings.allow_dropped_state:
        return
    if step.kind not in OF_FUNCTIONS:
        return
    names = {meta.name for snapshot in saved for meta in snapshot.tables}.difference(declared, own)
    left = [name for name in sorted(names) if not any(may_ask_for(f, name) for f in step.functions)]
    lost = [name for name in left if any(has_rows(snapshot, name, context.key_groups) for snapshot in saved)]
    if lost:
        raise IncompatibleStateError("; ".join(unclaimed(name, context.node.uid) for name in lost))


def unclaimed(state: str, uid: str) -> str:
    """Return the message about a state that a function no longer declares."""
    return (
        f"state {state!r} of step {uid!r} would be lost: its function does not ask for it any more. Declare it, "
        "give the step another uid if it is another one, or leave the state behind with allow-dropped-state"
    )


def has_rows(snapshot: KeyedSnapshot, name: str, own: KeyGroupRange) -> bool:
    """Return whether a state has rows in some key groups."""
    indices = {place for place, meta in enumerate(snapshot.tables) if meta.name == name}
    if not indices:
        return False
    try:
        for group in snapshot.groups:
            if own.start <= group < own.end:
                rows, blocks = decode_blocks(snapshot.groups[group])
                if not indices.isdisjoint([*(row.table for row in rows), *(block.table for block in blocks)]):
                    return True
    finally:
        if isinstance(snapshot.groups, RowsOnDemand):
            snapshot.release()
    return False
