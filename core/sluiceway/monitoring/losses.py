"""Records that a job has not processed: late, skipped, or put aside as dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.diagnosis import Diagnosis, Finding

__all__ = ["COUNTERS", "Loss", "losses", "why_lost"]

LATE: Final = "late"
DEAD_LETTER: Final = "dead letter"
UNREADABLE: Final = "unreadable"

COUNTERS: Final[Mapping[str, str]] = {
    "numLateRecordsDropped": LATE,
    "deadLetters": DEAD_LETTER,
    "records_skipped": UNREADABLE,
    "lines_skipped": UNREADABLE,
}
"""Reason by name of the counter of a step."""
_SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    LATE: (
        "{records} {came} behind the watermark and {was} dropped by {step!r}: allow more out-of-orderness or "
        "lateness, or take them with side_output_late_data().",
        "late-records",
    ),
    DEAD_LETTER: (
        "{records} on which {step!r} raised {was} put aside as dead letters: sluiceway dlq replays them.",
        "dead-letters",
    ),
    UNREADABLE: ("{records} that {step!r} could not read {was} skipped.", "unreadable-records"),
}


class Loss(msgspec.Struct, frozen=True):
    """Records that a step of one subtask has not processed.

    Attributes:
        step: name of the step.
        vertex: id of its job vertex.
        subtask: index of the subtask.
        reason: ``late``, ``dead letter`` or ``unreadable``.
        records: number of records, since the subtask was started last.
    """

    step: str
    vertex: int
    subtask: int
    reason: str
    records: int


def losses(metrics: JobMetrics) -> list[Loss]:
    """Return the losses of each step and subtask, in the order of the plan."""
    return [
        Loss(step, task.vertex_id, task.subtask, reason, int(own[counter]))
        for task in metrics.subtasks
        for step, own in task.operators.items()
        for counter, reason in COUNTERS.items()
        if own.get(counter)
    ]


def why_lost(metrics: JobMetrics) -> Diagnosis:
    """Name the steps that have dropped records, and the reason; the largest number first."""
    sums: dict[tuple[int, str, str], int] = {}
    for loss in losses(metrics):
        key = loss.vertex, loss.step, loss.reason
        sums[key] = sums.get(key, 0) + loss.records
    found = [
        _finding(vertex, step, reason, number)
        for (vertex, step, reason), number in sorted(sums.items(), key=lambda item: -item[1])
    ]
    nothing = Finding("no-losses", "No record was dropped: none was late, none skipped, none a dead letter.", "ok")
    return Diagnosis(found or [nothing])


def _finding(vertex: int, step: str, reason: str, number: int) -> Finding:
    text, kind = _SENTENCES[reason]
    one = number == 1
    records = f"{number:,} record{'' if one else 's'}"
    told = text.format(records=records, step=step, came="came", was="was" if one else "were")
    return Finding(kind, told, "notice", vertex=vertex)
