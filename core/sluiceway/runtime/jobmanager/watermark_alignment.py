"""Watermark alignment in the job master: the slowest reader of each group."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["AlignmentCoordinator"]


class AlignmentCoordinator:
    """Coordinator of alignment groups: announces the slowest reader's watermark. Job master's thread.

    Args:
        announce: tells a reader, by its attempt id, the watermark of the slowest in ms, or None where no reader
            counts.
    """

    def __init__(self, announce: Callable[[str, int | None], None]) -> None:
        self._announce = announce
        self._groups: dict[str, dict[str, int | None]] = {}
        self._group_of: dict[str, str] = {}
        self._announced: dict[str, int | None] = {}

    def report(self, group: str, attempt_id: str, mark: int | None) -> None:
        """Record a reader's watermark (ms); None: it is idle, or at its end, and does not count."""
        members = self._groups.setdefault(group, {})
        is_new = attempt_id not in members
        members[attempt_id] = mark
        self._group_of[attempt_id] = group
        # A new reader has not received the last announcement, even if it is still true.
        if not self._compare(group) and is_new:
            self._announce(attempt_id, self._announced.get(group))

    def leave(self, attempt_id: str) -> None:
        """Remove a reader that has ended. Unknown ones are ignored."""
        group = self._group_of.pop(attempt_id, None)
        if group is not None:
            del self._groups[group][attempt_id]
            self._compare(group)

    def _compare(self, group: str) -> bool:
        members = self._groups[group]
        slowest = min((mark for mark in members.values() if mark is not None), default=None)
        if slowest == self._announced.get(group):
            return False
        self._announced[group] = slowest
        for attempt_id in members:
            self._announce(attempt_id, slowest)
        return True
