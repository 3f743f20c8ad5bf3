"""Rows of a snapshot in a file without a name, which ends with its last open descriptor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Final
from weakref import finalize

from sluiceway.errors import StateError
from sluiceway.serializers import Block, Row, encode_items, join_items
from sluiceway.util.private_files import make_private_directory

__all__ = ["Spool"]

_ENOUGH: Final = 4 << 20
"""So many bytes are in memory before they go into the file."""


class _Items:
    """Rows of a key group, or its blocks.

    Attributes:
        count: their number.
        waiting: those that are not in the file yet.
        spans: places of the others in it, offset and length.
    """

    __slots__ = ("count", "spans", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.waiting = bytearray()
        self.spans: list[tuple[int, int]] = []


class Spool(Mapping[int, bytes]):
    """Result of :func:`sluiceway.serializers.encode_rows` by key group, in a file.

    Filled in one thread; then read from any.

    Args:
        directory: directory of the file; made if it does not exist.

    Raises:
        StateError: the file cannot be made; names the directory. The same from :meth:`put` and :meth:`flush`.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._groups: dict[int, tuple[_Items, _Items]] = {}
        self._size = 0
        self._waiting = 0
        try:
            make_private_directory(directory)
            # Where the system can make a file without a name, a process that is killed leaves none behind.
            stream = tempfile.TemporaryFile(buffering=0, prefix="sluiceway-state-", dir=directory)  # noqa: SIM115
        except OSError as error:
            raise self._cannot(error) from error
        self._file = stream.fileno()
        self._closing = finalize(self, stream.close)

    def put(self, rows: Mapping[int, list[Row]], blocks: Mapping[int, list[Block]]) -> None:
        """Add rows and blocks, by key group."""
        for group, some in rows.items():
            self._add(self._items(group)[0], len(some), encode_items(some))
        for group, more in blocks.items():
            self._add(self._items(group)[1], len(more), encode_items(more))

    def _items(self, group: int) -> tuple[_Items, _Items]:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = (_Items(), _Items())
        return found

    def _add(self, items: _Items, count: int, data: bytes) -> None:
        items.count += count
        items.waiting += data
        self._waiting += len(data)
        if self._waiting >= _ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Have all in the file."""
        parts = []
        size = self._size
        for both in self._groups.values():
            for items in both:
                if items.waiting:
                    items.spans.append((size, len(items.waiting)))
                    size += len(items.waiting)
                    parts.append(items.waiting)
                    items.waiting = bytearray()
        data = memoryview(b"".join(parts))
        try:
            while data:
                # Positions are explicit here and in reads: all readers share the descriptor, and with it the file
                # offset.
                written = os.pwrite(self._file, data, self._size)
                self._size += written
                data = data[written:]
        except OSError as error:
            raise self._cannot(error) from error
        self._waiting = 0

    def close(self) -> None:
        """Give the file up. Harmless a second time."""
        self._closing()

    def _cannot(self, error: OSError) -> StateError:
        return StateError(
            f"state backend 'filesystem' cannot write a snapshot to the directory {self._directory}: "
            f"{error.strerror or error}. Set SLUICEWAY_FILESYSTEM_DIRECTORY to another one"
        )

    def __getitem__(self, group: int) -> bytes:
        rows, blocks = self._groups[group]
        return join_items(rows.count, self._read(rows), blocks.count, self._read(blocks))

    def _read(self, items: _Items) -> Iterator[bytes]:
        for offset, size in items.spans:
            data = b""
            while len(data) < size:
                part = os.pread(self._file, size - len(data), offset + len(data))
                if not part:
                    raise StateError(f"a snapshot's file in {self._directory} has become shorter")
                data += part
            yield data

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)
