"""Search path of modules of a process that runs many jobs."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable

__all__ = ["SearchPath"]


class SearchPath:
    """Entries that jobs have added to ``sys.path``, each for as long as one of them runs.

    A process that removed none would look through the directories of all earlier jobs in each import.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, frozenset[str]] = {}
        self._added: set[str] = set()

    def use(self, job: Hashable, entries: Iterable[str]) -> None:
        """Add the entries of a job that are not there yet."""
        entries = list(entries)
        self._entries[job] = frozenset(entries)
        for entry in entries:
            if entry not in sys.path:
                sys.path.append(entry)
                self._added.add(entry)

    def drop(self, job: Hashable) -> None:
        """Remove the entries of a job that were added here and that no other job has; harmless a second time."""
        entries = self._entries.pop(job, frozenset()) & self._added
        for entry in entries.difference(*self._entries.values()):
            self._added.discard(entry)
            if entry in sys.path:
                sys.path.remove(entry)
