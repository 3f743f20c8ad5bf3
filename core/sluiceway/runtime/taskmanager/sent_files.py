"""Storage whose files are sent away while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile
from sluiceway.errors import CheckpointError
from sluiceway.util.overriding import override

__all__ = ["SentFiles"]

_PART: Final = 1 << 20
"""Bytes in a message, at most."""


class SentFiles(CheckpointStorage):
    """Storage that sends files in parts and keeps none, so that nothing can be read.

    Args:
        send_part: sends a part: the file's name, the number of bytes before it, its bytes, whether it is the last.
    """

    location = "the job manager"

    def __init__(self, send_part: Callable[[str, int, bytes, bool], None]) -> None:
        self._send_part = send_part

    @override
    def write(self, name: str, parts: Iterable[bytes]) -> int:
        offset = 0
        for part in parts:
            for at in range(0, len(part), _PART):
                data = part[at : at + _PART]
                self._send_part(name, offset, data, False)
                offset += len(data)
        self._send_part(name, offset, b"", True)
        return offset

    @override
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        self._refuse(name)

    @override
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        self._refuse(directory)

    @override
    def delete(self, names: Iterable[str]) -> None:
        self._refuse(", ".join(names))

    def _refuse(self, what: str) -> NoReturn:
        raise CheckpointError(f"{what} was sent to the job manager, which alone can read and delete it")
