"""State backend ``filesystem``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend
from sluiceway.state.heap import Blocks, HeapKeyedBackend, HeapSnapshot, Rows
from sluiceway.util.overriding import override
from sluiceway_filestate._spool import Spool

__all__ = ["FilesystemStateBackend"]


class FilesystemStateBackend(StateBackend):
    """State backend on the heap whose snapshots are encoded into local files, a little at a time.

    Args:
        directory: directory of these files; empty: the value of ``SLUICEWAY_FILESYSTEM_DIRECTORY``, else that for
            temporary files.
    """

    def __init__(self, directory: str = "") -> None:
        found = directory or os.environ.get("SLUICEWAY_FILESYSTEM_DIRECTORY") or tempfile.gettempdir()
        self._directory = os.path.abspath(found)

    @override
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        return HeapKeyedBackend(context, partial(_FileSnapshot, self._directory))


class _FileSnapshot(HeapSnapshot):
    """Rows by key group, read from a file."""

    def __init__(self, directory: str, *taken: Any) -> None:
        super().__init__(*taken)
        self._directory = directory

    def encode(self, rows: Rows, blocks: Blocks, steps: Iterator[None]) -> Mapping[int, bytes]:
        """Encode all rows into a file."""
        spool = Spool(self._directory)
        try:
            for _ in steps:
                spool.put(rows, blocks)
                rows.clear()
                blocks.clear()
            spool.flush()
        except BaseException:
            spool.close()
            raise
        return spool
