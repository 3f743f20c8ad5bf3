"""Summary of the event time of a reader's splits, of a size that does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final

from sluiceway.elements import MIN_WATERMARK
from sluiceway.metrics import SplitTime, SplitTimes

__all__ = ["SHOWN", "split_times"]

SHOWN: Final = 16
"""Largest number of splits named: up to three quarters of them hold back the watermark, the others are idle."""
_SLOWEST: Final = 12
_LONGEST_ID: Final = 200


def split_times(splits: Iterable[tuple[str, int, bool, int]]) -> SplitTimes | None:
    """Summarize splits, given as id, watermark (ms), idle, and ms since the last record; None: there are none."""
    active: list[tuple[int, int, str]] = []
    idle: list[tuple[int, int, str]] = []
    for split_id, mark, is_idle, silent_ms in splits:
        if is_idle:
            idle.append((-silent_ms, mark, split_id))
        else:
            active.append((mark, -silent_ms, split_id))
    if not active and not idle:
        return None
    # A split whose generator has no watermark yet counts as active, and holds the watermark back.
    marks = sorted(mark for mark, _, _ in active if mark > MIN_WATERMARK)
    last_ms = min([-silent for _, silent, _ in active] + [-silent for silent, _, _ in idle])
    slowest = [_shown(id_, mark, False, -silent) for mark, silent, id_ in nsmallest(_SLOWEST, active)]
    resting = [_shown(id_, mark, True, -silent) for silent, mark, id_ in nsmallest(SHOWN - len(slowest), idle)]
    return SplitTimes(
        splits=len(active) + len(idle),
        idle=len(idle),
        without_watermark=len(active) - len(marks),
        median=marks[len(marks) // 2] if marks else None,
        highest=marks[-1] if marks else None,
        last_record_s=max(last_ms, 0) / 1000,
        shown=(*slowest, *resting),
    )


def _shown(split_id: str, mark: int, idle: bool, silent_ms: int) -> SplitTime:
    # Ids of files differ at their end.
    name = split_id if len(split_id) <= _LONGEST_ID else "…" + split_id[1 - _LONGEST_ID :]
    # A generator of a user may give anything that compares.
    return SplitTime(name, int(mark) if mark > MIN_WATERMARK else None, idle, max(silent_ms, 0) / 1000)
