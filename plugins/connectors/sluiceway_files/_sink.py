"""The sink that writes files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError, choose
from sluiceway.lines import check_encoding
from sluiceway_files import _compression
from sluiceway_files._compression import SUFFIXES, Compression
from sluiceway_files._encoders import (
    CsvFormat,
    FileEncoder,
    JsonLinesFormat,
    ParquetFormat,
    SinkFormat,
    TextFormat,
)
from sluiceway_files._parquet import need_pyarrow
from sluiceway_files._places import PathLike, failing_with, open_filesystem, paths_of, shown

__all__ = ["FilesSink"]

_ROW_GROUP_SIZE: Final = 50_000
_CODECS: Final = ("snappy", "gzip", "brotli", "zstd", "lz4", "none")


class FilesSink(Sink[Any]):
    """Writes records into files in one directory. Made by one of its class methods, one per format.

    Subtask i writes ``part-i-0``, then (with ``roll_size``) ``part-i-1`` and so on, each with the suffix of
    its format and compression. A file has a name that begins with ``.`` while it is written, and gets its
    own when it is complete: when it is large enough, and at the end of the input. If the job fails or is
    cancelled, the file that was being written is removed; complete ones stay. A subtask without records
    writes no file.

    Files are written in the task's thread: a slow filesystem holds up everything else in its worker.
    """

    def __init__(
        self,
        directory: PathLike,
        form: SinkFormat,
        *,
        compression: Compression | None = None,
        roll_size: int | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(form, SinkFormat):
            raise ConfigurationError(
                "FilesSink is made by FilesSink.text, .csv, .json_lines or .parquet, which take the directory"
            )
        (self._directory,) = paths_of([directory])
        _compression.check(compression)
        if roll_size is not None and (not isinstance(roll_size, int) or roll_size < 1):
            raise ConfigurationError(f"roll_size={roll_size!r} must be a number of bytes, at least 1, or None")
        self._format = form
        self._compression = compression
        self._roll_size = roll_size
        self._append = append
        self._options = dict(storage_options or {})

    @classmethod
    def text(
        cls,
        directory: PathLike,
        *,
        to_text: Callable[[Any], str] = str,
        encoding: str = "utf-8",
        compression: Compression | None = None,
        roll_size: int | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a line.

        Args:
            directory: where the files go; made if it is not there.
            to_text: makes the line of a record.
            encoding: how the text is encoded.
            compression: None or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            roll_size: bytes (before compression) after which a subtask begins another file; None: never.
            append: whether to write beside the files of an earlier run; otherwise finding some fails the job.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: zstd was asked for and zstandard is not installed.
        """
        check_encoding(encoding, "\n")
        if not callable(to_text):
            raise ConfigurationError(f"to_text={to_text!r:.60} must be a function from a record to str")
        return cls(
            directory,
            TextFormat(encoding, to_text),
            compression=compression,
            roll_size=roll_size,
            append=append,
            storage_options=storage_options,
        )

    @classmethod
    def json_lines(
        cls,
        directory: PathLike,
        *,
        compression: Compression | None = None,
        roll_size: int | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a JSON value in a line; dataclasses become objects. Arguments as for :meth:`text`."""
        return cls(
            directory,
            JsonLinesFormat(),
            compression=compression,
            roll_size=roll_size,
            append=append,
            storage_options=storage_options,
        )

    @classmethod
    def csv(
        cls,
        directory: PathLike,
        *,
        columns: Sequence[str] | None = None,
        header: bool = True,
        delimiter: str = ",",
        quotechar: str = '"',
        encoding: str = "utf-8",
        compression: Compression | None = None,
        roll_size: int | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a row: a dict, dataclass or named tuple by column name, or a tuple or list by position.

        Every row must have exactly the columns. The other arguments are as for :meth:`text`.

        Args:
            directory: where the files go.
            columns: the column names; None: those of the first record, if it has any.
            header: whether each file begins with the column names, where there are any.
            delimiter: between fields, one character.
            quotechar: around fields that need it, one character.
            encoding: how the text is encoded.
            compression: None or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            roll_size: bytes after which a subtask begins another file.
            append: whether to write beside the files of an earlier run.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: zstd was asked for and zstandard is not installed.
        """
        check_encoding(encoding, "\n")
        for name, sign in (("delimiter", delimiter), ("quotechar", quotechar)):
            if not isinstance(sign, str) or len(sign) != 1:
                raise ConfigurationError(f"{name}={sign!r} must be one character")
        return cls(
            directory,
            CsvFormat(None if columns is None else tuple(columns), header, delimiter, quotechar, encoding),
            compression=compression,
            roll_size=roll_size,
            append=append,
            storage_options=storage_options,
        )

    @classmethod
    def parquet(
        cls,
        directory: PathLike,
        *,
        schema: Any = None,
        row_group_size: int = _ROW_GROUP_SIZE,
        codec: str = "snappy",
        roll_size: int | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a row: a dict, dataclass or named tuple; needs pyarrow.

        Args:
            directory: where the files go.
            schema: a ``pyarrow.Schema``; None: taken from the first row group of each file.
            row_group_size: rows that are kept in memory and written together.
            codec: compression inside the file: ``snappy``, ``gzip``, ``brotli``, ``zstd``, ``lz4`` or ``none``.
            roll_size: bytes (in memory) after which a subtask begins another file, at the end of a row group.
            append: whether to write beside the files of an earlier run.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: pyarrow is not installed.
        """
        need_pyarrow()
        if codec not in _CODECS:
            raise ConfigurationError(f"codec={codec!r} must be one of {', '.join(map(repr, _CODECS))}")
        if not isinstance(row_group_size, int) or row_group_size < 1:
            raise ConfigurationError(f"row_group_size={row_group_size!r} must be a number of rows, at least 1")
        return cls(
            directory,
            ParquetFormat(schema, row_group_size, codec),
            roll_size=roll_size,
            append=append,
            storage_options=storage_options,
        )

    @classmethod
    def of(cls, directory: PathLike, format: str = "text", **options: Any) -> FilesSink:  # noqa: A002
        """By the name of a format: ``text``, ``csv``, ``json_lines`` or ``parquet``."""
        formats: dict[str, Callable[..., FilesSink]]
        formats = {"text": cls.text, "csv": cls.csv, "json_lines": cls.json_lines, "parquet": cls.parquet}
        if format not in formats:
            raise choose("file format", format, formats)
        return formats[format](directory, **options)

    def __repr__(self) -> str:
        return f"FilesSink({self._directory!r})"

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """None: what a failed job had not completed is removed."""
        return DeliveryGuarantee.NONE

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make the writer of one subtask."""
        return _FilesWriter(self, context.subtask)


class _FilesWriter(SinkWriter[Any]):
    def __init__(self, sink: FilesSink, subtask: int) -> None:
        self._sink = sink
        self._prefix = f"part-{subtask}-"
        self._suffix = sink._format.suffix + (SUFFIXES[sink._compression] if sink._compression else "")
        self._number = 0
        self._filesystem: Any = None
        self._directory = ""
        self._raw: Any = None
        self._file: Any = None
        self._encoder: FileEncoder | None = None
        self._size = 0

    def open(self) -> None:
        self._filesystem, path = open_filesystem(self._sink._directory, self._sink._options)
        self._directory = path.rstrip("/")
        place = shown(self._filesystem, self._directory)
        with failing_with(f"write to {place}"):
            if self._filesystem.isfile(self._directory):
                raise ConnectorError(f"cannot write to {place}: it is a file; FilesSink writes into a directory")
            self._filesystem.makedirs(self._directory, exist_ok=True)
            names = [str(path).rsplit("/", 1)[-1] for path in self._filesystem.ls(self._directory, detail=False)]
        earlier = [name for name in names if name.startswith(self._prefix)]
        if earlier and not self._sink._append:
            raise ConnectorError(
                f"{place} already holds {min(earlier)} from an earlier run. Take another directory, or "
                "append=True to write beside it"
            )
        numbers = [name.removeprefix(self._prefix).split(".")[0] for name in earlier]
        self._number = max((int(n) + 1 for n in numbers if n.isdecimal()), default=0)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if not values:
            return
        if self._encoder is None:
            with failing_with(f"write {self._shown()}"):
                self._encoder = self._begin()
        data = self._encoder.encode(values)
        self._size += len(data)
        with failing_with(f"write {self._shown()}"):
            self._file.write(data)
            roll_size = self._sink._roll_size
            if roll_size is not None and self._size + self._encoder.written >= roll_size:
                self._complete()

    def flush(self) -> None:
        if self._raw is not None and self._raw is self._file:
            with failing_with(f"write {self._shown()}"):
                self._raw.flush()

    def finish(self) -> None:
        if self._encoder is not None:
            with failing_with(f"write {self._shown()}"):
                self._complete()

    def close(self) -> None:
        if self._raw is None:
            return
        try:
            with suppress(Exception):  # it is to be removed
                if self._encoder is not None:
                    self._encoder.abandon()
            with suppress(Exception):
                self._close_files()
        finally:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(self._path(in_progress=True))

    def _begin(self) -> FileEncoder:
        self._raw = self._filesystem.open(self._path(in_progress=True), "wb")
        self._file = _compression.compressing(self._raw, self._sink._compression)
        return self._sink._format.encoder(self._file, self._shown())

    def _complete(self) -> None:
        assert self._encoder is not None
        self._encoder.finish()
        self._close_files()
        written, final = self._path(in_progress=True), self._path()
        if isinstance(self._filesystem, LocalFileSystem):
            os.replace(written, final)
        else:
            self._filesystem.mv(written, final)
        self._number += 1
        self._size = 0

    def _close_files(self) -> None:
        raw, file = self._raw, self._file
        self._encoder = self._file = None
        try:
            if file is not None and file is not raw:
                file.close()
        finally:
            raw.close()
        self._raw = None

    def _path(self, in_progress: bool = False) -> str:
        name = f"{self._prefix}{self._number}{self._suffix}"
        return f"{self._directory}/.{name}.in-progress" if in_progress else f"{self._directory}/{name}"

    def _shown(self) -> str:
        return shown(self._filesystem, self._path())
