"""Keyed state on the heap that knows what has changed: a log of changes in place of snapshots."""

from sluiceway.state.changelog.backend import ChangelogStateBackend
from sluiceway.state.changelog.log import ChangeLog, snapshot_of

__all__ = ["ChangeLog", "ChangelogStateBackend", "snapshot_of"]
