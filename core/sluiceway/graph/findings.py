"""Findings: problems of a program, or possible ones, as building and checking collect them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from sluiceway.errors import GraphError

__all__ = ["Finding", "Level", "graph_error"]


class Level(Enum):
    """Severity of a finding: an error cannot run or would fail, a warning may be intended."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True):
    """Problem of a program.

    Attributes:
        level: its severity.
        code: stable word for the kind of finding: ``duplicate-uid``.
        message: what is wrong, where, and what to do.
        node: name of the step, or empty.
        location: ``file.py:12`` of that step, or empty.
    """

    level: Level
    code: str
    message: str
    node: str = ""
    location: str = ""

    def __str__(self) -> str:
        return f"{self.level.value}: {self.message} [{self.code}]"


def graph_error(job_name: str, findings: Iterable[Finding]) -> GraphError:
    """Make one error of all the findings that are errors."""
    messages = [f.message for f in findings if f.level is Level.ERROR]
    if len(messages) == 1:
        return GraphError(messages[0])
    lines = "".join(f"\n  {i}. {message}" for i, message in enumerate(messages, 1))
    return GraphError(f"pipeline {job_name!r} has {len(messages)} problems:{lines}")
