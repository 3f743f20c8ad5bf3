"""Findings: facts about a job that explain something, and texts of durations in them."""

from __future__ import annotations

import msgspec

__all__ = ["Finding", "age"]


class Finding(msgspec.Struct, frozen=True):
    """One fact about a job that explains something.

    Attributes:
        kind: machine-readable name, such as ``busy-task``.
        text: one sentence for people.
        severity: ``cause``, ``notice`` or ``ok``.
        vertex: id of the job vertex, if the fact is about one.
        subtask: index of the subtask, if it is about one.
        worker: name of the worker process, if it is about one.
        split: id of the split of a source, shortened, if it is about one.
        key: key of a keyed step as text, shortened, if it is about one.
        function: function in which the task spends its time, as ``module.function (file:line)``, if samples of its
            stacks have named one.
    """

    kind: str
    text: str
    severity: str = "cause"
    vertex: int | None = None
    subtask: int | None = None
    worker: str = ""
    split: str = ""
    key: str = ""
    function: str = ""


def age(ms: float) -> str:
    """Format a duration (ms) for people."""
    seconds = ms / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 86_400:,.0f} days"
