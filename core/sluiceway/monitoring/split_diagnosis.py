"""Event time of the splits of a source over all its subtasks, and the split that holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import SplitTimes
from sluiceway.monitoring.findings import Finding, age
from sluiceway.monitoring.infos import VertexInfo
from sluiceway.monitoring.rates import SubtaskRates

__all__ = ["SourceSplits", "SplitOfSubtask", "held_back_by_split", "idle_splits", "source_splits"]

SHOWN: Final = 20
_SILENT_S: Final = 2.0
"""Seconds without a record from which a split without a watermark is named."""
_LONG_SILENT_S: Final = 5.0


class SplitOfSubtask(msgspec.Struct, frozen=True):
    """Event time of one split: a :class:`~sluiceway.metrics.SplitTime` with the subtask that reads it."""

    split: str
    subtask: int
    watermark: int | None
    idle: bool
    silent_s: float


class SourceSplits(msgspec.Struct, frozen=True):
    """Event time of the splits of a source: counts of all, and at most 20 by name.

    Attributes:
        splits: number of splits that are being read.
        idle: number of those that are idle.
        without_watermark: number of those that are not idle and have no watermark yet.
        median: of the watermarks of those that are not idle (ms), about; None: no such split has one.
        highest: the highest of these.
        last_record_s: seconds since the last record of any split.
        shown: splits that hold back the watermark most, then idle ones.
    """

    splits: int
    idle: int
    without_watermark: int
    median: int | None
    highest: int | None
    last_record_s: float
    shown: list[SplitOfSubtask]


def source_splits(subtasks: Iterable[SubtaskRates]) -> SourceSplits | None:
    """Combine the splits of a vertex's subtasks; None: it has none, or does not tell."""
    told = [(r.metrics.subtask, r.metrics.splits) for r in subtasks if r.metrics.splits is not None]
    if not told:
        return None
    shown = sorted(
        (
            SplitOfSubtask(s.split, subtask, s.watermark, s.idle, s.silent_s)
            for subtask, splits in told
            for s in splits.shown
        ),
        key=_rank,
    )
    idle = [s for s in shown if s.idle]
    # A quarter of the places is for idle ones: where there are any, one is always named.
    active = [s for s in shown if not s.idle][: SHOWN - min(len(idle), SHOWN // 4)]
    return SourceSplits(
        splits=sum(s.splits for _, s in told),
        idle=sum(s.idle for _, s in told),
        without_watermark=sum(s.without_watermark for _, s in told),
        median=_median([s for _, s in told]),
        highest=max((s.highest for _, s in told if s.highest is not None), default=None),
        last_record_s=min(s.last_record_s for _, s in told),
        shown=[*active, *idle[: SHOWN - len(active)]],
    )


def _rank(split: SplitOfSubtask) -> tuple[bool, bool, float, float]:
    mark = split.watermark
    # Without a watermark first, then the lowest; idle ones last, the longest silent first.
    return (split.idle, mark is not None, 0 if split.idle or mark is None else mark, -split.silent_s)


def _median(told: Sequence[SplitTimes]) -> int | None:
    """Return the median of the medians, each weighted with its number of splits."""
    known = sorted((s.median, s.splits - s.idle - s.without_watermark) for s in told if s.median is not None)
    middle = sum(weight for _, weight in known) / 2
    for mark, weight in known:
        middle -= weight
        if middle < 0:
            return mark
    return known[-1][0] if known else None


def held_back_by_split(
    vertex: VertexInfo, subtasks: Iterable[SubtaskRates], late_ms: int, now_ms: int
) -> Finding | None:
    """Find a split without a watermark, or one whose watermark is far behind that of the others.

    Args:
        vertex: a source.
        subtasks: its subtasks.
        late_ms: difference of event time from which a split is far behind.
        now_ms: the clock.
    """
    found = source_splits(subtasks)
    if found is None or found.median is None:
        return None
    slowest = found.shown[0]
    if slowest.idle:
        return None
    where = f"split {slowest.split!r} of {vertex.name!r} (subtask {slowest.subtask + 1})"
    if slowest.watermark is None:
        if slowest.silent_s < _SILENT_S:
            return None
        others = found.without_watermark - 1
        more = "" if not others else f", and so have {others:,} others" if others > 1 else ", and so has another"
        return _held(
            "no-watermark",
            f"Event time does not advance because {where} has given no record for {age(slowest.silent_s * 1000)} "
            f"and has no watermark{more}: give the watermark strategy an idleness timeout (with_idleness) if "
            "splits may be empty.",
            vertex,
            slowest,
        )
    behind = found.median - slowest.watermark
    if min(found.median, now_ms) - slowest.watermark < late_ms or slowest.watermark >= MAX_WATERMARK:
        return None
    silent = ""
    if slowest.silent_s >= _LONG_SILENT_S:
        silent = (
            f", and it has given no record for {age(slowest.silent_s * 1000)}. An idleness timeout of the "
            "watermark strategy (with_idleness) leaves silent splits out"
        )
    return _held(
        "held-back",
        f"Event time is held back by {where}: its watermark is {age(behind)} behind that of the other "
        f"splits{silent}.",
        vertex,
        slowest,
    )


def _held(kind: str, text: str, vertex: VertexInfo, split: SplitOfSubtask) -> Finding:
    return Finding(kind, text, vertex=vertex.id, subtask=split.subtask, split=split.split)


def idle_splits(vertex: VertexInfo, subtasks: Iterable[SubtaskRates]) -> Finding | None:
    """Find splits that are idle; if all of a source are, ``kind`` is ``idle-source``."""
    found = source_splits(subtasks)
    if found is None or not found.idle:
        return None
    first = next(s for s in found.shown if s.idle)
    if found.idle == found.splits:
        kind = "idle-source"
        text = (
            f"All {found.splits:,} splits of {vertex.name!r} are idle: the last record arrived "
            f"{age(found.last_record_s * 1000)} ago, and the longest silent one is {first.split!r}."
        )
        if found.splits == 1:
            text = (
                f"The only split of {vertex.name!r}, {first.split!r}, is idle: its last record arrived "
                f"{age(first.silent_s * 1000)} ago."
            )
    else:
        kind = "idle-splits"
        are = "is idle and does" if found.idle == 1 else "are idle and do"
        text = (
            f"{found.idle:,} of {found.splits:,} splits of {vertex.name!r} {are} not hold event time back: "
            f"{first.split!r} has given no record for {age(first.silent_s * 1000)}."
        )
    return Finding(kind, text, "notice", vertex=vertex.id, subtask=first.subtask, split=first.split)
