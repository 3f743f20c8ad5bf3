"""Atomic writes of files: as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_directory", "write_file"]


def write_file(file: Path, data: bytes) -> None:
    """Write all of it, or nothing, whenever the machine stops. Raises OSError."""
    part = file.with_name(f".{file.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
