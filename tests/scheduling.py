"""Order in which the processes of pytest-xdist take tests: what takes longest comes first.

What is begun last and takes longest decides when a run ends: an hour of it at the end, with one core idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

__all__ = ["LongestFirst", "longest_first"]

_SINGLY = ("tests/simulation/", "tests/soak/")
"""Their tests share nothing, and some take a quarter of an hour: each may be in a process of its own."""
_LONG = ("soak", "yarn", "slow", "docs", "hypothesis")
"""Marks, from the longest tests to the shortest."""


class LongestFirst(LoadFileScheduling):
    """Hands out the tests of a file together, as they share clusters, or singly if they share nothing."""

    def _reschedule(self, node: Any) -> None:
        """Hand out units until the process knows two tests, or that there are no more.

        A process begins a test when it knows the next one. pytest-xdist hands out one unit at a time, which may
        hold one test, or none: what a process that died had done comes back into the queue with what it had not.
        """
        known = 0
        while known < 2 and not node.shutting_down:
            super()._reschedule(node)
            known = self._pending_of(self.assigned_work[node])

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by what is handed out together: by the longest mark in it, then by the number of its tests."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(_unit(item.nodeid), []).append(item)
    longest = sorted(units.values(), key=lambda unit: (min(map(_rank, unit)), -len(unit)))
    return list(chain.from_iterable(longest))


def _unit(nodeid: str) -> str:
    return nodeid if nodeid.startswith(_SINGLY) else nodeid.partition("::")[0]


def _rank(item: pytest.Item) -> int:
    return min((_LONG.index(mark.name) for mark in item.iter_markers() if mark.name in _LONG), default=len(_LONG))
