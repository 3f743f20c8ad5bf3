"""The sink: writes lines into a file."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

from sluiceway.connector import Sink, SinkWriter, WriterContext
from sluiceway.errors import ConnectorError

__all__ = ["MyPluginSink"]


class MyPluginSink(Sink[Any]):
    """Sink that appends each record to a file, as a line of text: at least once.

    Args:
        path: the file; made where there is none.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def max_writers(self) -> int:
        """One: two writers would write into each other's lines."""
        return 1

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make the writer of one subtask."""
        return _Writer(self.path)


class _Writer(SinkWriter[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def open(self) -> None:
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConnectorError(f"cannot write {self._path}: {error.strerror}") from error

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        assert self._file is not None
        self._file.writelines(f"{value}\n" for value in values)

    def flush(self) -> None:
        assert self._file is not None
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
