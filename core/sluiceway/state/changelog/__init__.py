"""Changelog state backend: keyed state on the heap whose snapshots are a log of changes.

The format of the log, ``format``, is that of every backend and engine that stores changes.
"""

from sluiceway.state.changelog.backend import ChangelogStateBackend
from sluiceway.state.changelog.log import ChangeLog, snapshot_of

__all__ = ["ChangeLog", "ChangelogStateBackend", "snapshot_of"]
