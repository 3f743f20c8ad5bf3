"""Keys that no row and no aggregate uses any more, which are forgotten when most are such."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

import numpy as np

from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["HoldsKeys", "forget_idle"]

_IDLE: Final = 1 << 16
"""Keys in use by nothing that are kept in any case."""


class HoldsKeys(Protocol):
    """Holder of numbers of keys."""

    def used_ids(self) -> Iterable[Any]:
        """Return arrays with the numbers of the keys that are in use."""

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers, given by the old ones."""


def forget_idle(keys: KeyIds, holders: Iterable[HoldsKeys], kept: int) -> int:
    """Forget the keys that nobody uses, if most are such.

    Args:
        keys: the keys of the subtask.
        holders: all that hold numbers of keys.
        kept: what was returned the last time, 0 at first.

    Returns:
        how many keys were in use when they were last counted.
    """
    # Counting reads the numbers of all holders: it waits until keys have doubled since the last time.
    if len(keys) <= 2 * kept + _IDLE:
        return kept
    held = list(holders)
    live = np.zeros(len(keys), bool)
    for each in held:
        for ids in each.used_ids():
            live[ids] = True
    alive = int(live.sum())
    if 2 * alive + _IDLE // 2 <= len(keys):
        renumbered = keys.retain(live)
        for each in held:
            each.renumber(renumbered)
    return alive
