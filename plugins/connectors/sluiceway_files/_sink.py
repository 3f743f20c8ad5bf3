"""Sink that writes files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sluiceway.config.options import duration_ms
from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.connector.line_splitter import check_encoding
from sluiceway.errors import ConfigurationError, choose
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override
from sluiceway.util.redaction import redact
from sluiceway_files import _compression
from sluiceway_files._compression import Compression
from sluiceway_files._encoders import CsvFormat, JsonLinesFormat, ParquetFormat, SinkFormat, TextFormat
from sluiceway_files._output import Output
from sluiceway_files._parquet import need_pyarrow
from sluiceway_files._partitions import PartitionedWriter, checked_names, problems_of_partitions
from sluiceway_files._places import PathLike, paths_of
from sluiceway_files._writers import CommittingFilesWriter, FilesWriter

__all__ = ["FilesSink"]

_ROW_GROUP_SIZE: Final = 50_000
_MAX_OPEN: Final = 100
_CODECS: Final = ("snappy", "gzip", "brotli", "zstd", "lz4", "none")


class FilesSink(Sink[Any], metaclass=HintingType):
    """Sink of files in one directory. Created by one of its class methods, one per format.

    A file has a hidden name, which begins with ``.``, while it is written, and gets its own at once and whole.
    It is complete when it is large enough (``roll_size``) or old enough (``roll_interval``), at each checkpoint
    unless ``roll_on_checkpoint`` is false, and at the end of the input. A subtask without records writes no file.

    With checkpoints the output is exactly-once: a complete file gets its name when a checkpoint that knows of it
    is complete, and after a failure what no completed checkpoint knows of is dropped. Of a file that goes on over
    checkpoints (``roll_on_checkpoint=False``) the part that belongs to the checkpoint becomes a file. Subtask i
    writes ``part-i-0-`` and eight digits that are its attempt's own, ``part-i-1-...`` and so on, with the suffix
    of format and compression. Jobs that write into one directory at the same time must have different names. On
    local disks the files are durable by then; elsewhere as much as the filesystem makes of a closed file, and of a
    move, which may be a copy.

    Without checkpoints a file, ``part-i-0`` and so on, gets its name as soon as it is complete. If the job fails
    or is cancelled, the file that was being written is removed; complete ones stay. So it is in a job without a
    checkpoint interval that continues from a checkpoint, once what that has made ready is committed.

    Files are written in the task's thread: a slow filesystem holds up everything else in its worker. How old a
    file is is looked at when records come, when the input pauses, and at each checkpoint.
    """

    def __init__(
        self,
        directory: PathLike,
        form: SinkFormat | None = None,
        *,
        compression: Compression | None = None,
        roll_size: int | None = None,
        roll_interval: timedelta | int | str | None = None,
        roll_on_checkpoint: bool = True,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        partition_by: tuple[str, ...] = (),
        max_open_files: int = 1,
    ) -> None:
        if not isinstance(form, SinkFormat):
            raise ConfigurationError(
                "FilesSink is made by FilesSink.text, .csv, .json_lines or .parquet, which take the directory"
            )
        (where,) = paths_of([directory])
        _compression.check(compression)
        if roll_size is not None and (not isinstance(roll_size, int) or roll_size < 1):
            raise ConfigurationError(f"roll_size={roll_size!r} must be a number of bytes, at least 1, or None")
        if not roll_on_checkpoint:
            _check_resumable(where, compression)
        self._output = Output(
            where,
            form,
            compression,
            roll_size,
            _interval_ms(roll_interval),
            roll_on_checkpoint,
            append,
            dict(storage_options or {}),
            partition_by,
            max_open_files,
        )

    @classmethod
    def text(
        cls,
        directory: PathLike,
        *,
        to_text: Callable[[Any], str] = str,
        encoding: str = "utf-8",
        compression: Compression | None = None,
        roll_size: int | None = None,
        roll_interval: timedelta | int | str | None = None,
        roll_on_checkpoint: bool = True,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Return a sink that writes each record as a line.

        Args:
            directory: where the files go; made if it is not there.
            to_text: makes the line of a record.
            encoding: how the text is encoded.
            compression: None or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            roll_size: bytes (before compression) after which a subtask begins another file; None: never.
            roll_interval: age at which it does: a timedelta, ms, or a text such as ``10min``; None: never.
            roll_on_checkpoint: whether it does at each checkpoint, too. If not, a file is seen when it is large or
                old enough; this takes a local directory, and no compression.
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
            roll_interval=roll_interval,
            roll_on_checkpoint=roll_on_checkpoint,
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
        roll_interval: timedelta | int | str | None = None,
        roll_on_checkpoint: bool = True,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a JSON value in a line; dataclasses become objects. Arguments as for :meth:`text`."""
        return cls(
            directory,
            JsonLinesFormat(),
            compression=compression,
            roll_size=roll_size,
            roll_interval=roll_interval,
            roll_on_checkpoint=roll_on_checkpoint,
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
        roll_interval: timedelta | int | str | None = None,
        roll_on_checkpoint: bool = True,
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
            roll_interval: age at which it does.
            roll_on_checkpoint: whether it does at each checkpoint, too.
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
            roll_interval=roll_interval,
            roll_on_checkpoint=roll_on_checkpoint,
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
        partition_by: str | Sequence[str] = (),
        max_open_files: int = _MAX_OPEN,
        roll_size: int | None = None,
        roll_interval: timedelta | int | str | None = None,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSink:
        """Each record is a row: a dict, dataclass or named tuple; needs pyarrow.

        With ``partition_by`` a file has rows of one partition, and is in a directory that is named after it, as
        Hive names them: ``day=2026-01-01/country=de/part-0-0-....parquet``. These columns are not in the file.
        Null is ``__HIVE_DEFAULT_PARTITION__``, and text is escaped with ``%`` as pyarrow does. A subtask has a
        file open for each partition, at most ``max_open_files``: a further one completes the file that was
        written to the longest time ago. Together they keep at most ten row groups in memory; beyond that, row
        groups are smaller.

        Args:
            directory: where the files go.
            schema: a ``pyarrow.Schema``; None: taken from the first row group of each file.
            row_group_size: rows that are kept in memory and written together.
            codec: compression inside the file: ``snappy``, ``gzip``, ``brotli``, ``zstd``, ``lz4`` or ``none``.
            partition_by: a column or several, of text, integers, booleans or dates.
            max_open_files: files that a subtask has open at a time.
            roll_size: bytes (in memory) after which a subtask begins another file, at the end of a row group.
            roll_interval: age at which it does, as for :meth:`text`. With checkpoints, it does at each of them.
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
        if not isinstance(max_open_files, int) or max_open_files < 1:
            raise ConfigurationError(f"max_open_files={max_open_files!r} must be a number of files, at least 1")
        names = checked_names(partition_by, schema)
        for name in names if schema is not None else ():
            schema = schema.remove(schema.get_field_index(name))
        return cls(
            directory,
            ParquetFormat(schema, row_group_size, codec),
            roll_size=roll_size,
            roll_interval=roll_interval,
            append=append,
            storage_options=storage_options,
            partition_by=names,
            max_open_files=max_open_files,
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
        return f"FilesSink({redact(self._output.directory)!r})"

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE

    def problems_of_columns(self, schema: Any) -> Sequence[str]:
        """Return why rows cannot be partitioned or do not fit into the format's columns."""
        import pyarrow

        names = self._output.partition_by
        rest = pyarrow.schema([field for field in schema if field.name not in names])
        return [*problems_of_partitions(names, schema), *self._output.format.problems_of_columns(rest)]

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        # A restored writer may have output to commit.
        kind = CommittingFilesWriter if context.has_checkpoints or context.is_restored else FilesWriter
        writer = kind(self._output, context)
        return PartitionedWriter(writer) if self._output.partition_by else writer


def _interval_ms(value: timedelta | int | str | None) -> int | None:
    if value is None:
        return None
    try:
        ms = duration_ms(value)
    except ValueError as error:
        raise ConfigurationError(f"roll_interval={value!r}: {error}") from None
    if ms < 1:
        raise ConfigurationError(f"roll_interval={value!r} must be at least 1 ms, or None")
    return ms


def _check_resumable(directory: str, compression: Compression | None) -> None:
    """Raise an error if files cannot be truncated to the position of a checkpoint."""
    scheme, separator, _ = directory.partition("://")
    if compression is not None:
        reason = f"compression={compression!r} cannot be cut back to where a checkpoint was"
    elif separator and scheme not in ("file", "local"):
        reason = f"only local files can be cut back to where a checkpoint was, not those of {directory}"
    else:
        return
    raise ConfigurationError(f"roll_on_checkpoint=False: {reason}")
