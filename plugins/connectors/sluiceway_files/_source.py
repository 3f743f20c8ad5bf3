"""Source that reads files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, overload

from fsspec.implementations.local import LocalFileSystem

from sluiceway.columns.filters import Condition, Filters, conditions_of
from sluiceway.connector import (
    END_OF_INPUT,
    Alternatives,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleReader,
    Source,
)
from sluiceway.connector.discovery import SearchingEnumerator, watch_interval_ms
from sluiceway.connector.line_splitter import DEFAULT_MAX_LINE_LENGTH, DecodeErrors, LineDecoder, check_encoding
from sluiceway.errors import ConfigurationError, ConnectorError, IncompatibleStateError, choose
from sluiceway.metrics import MetricGroup
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override
from sluiceway.util.redaction import redact
from sluiceway_files import _compression
from sluiceway_files._compression import Compression
from sluiceway_files._csv import Csv, CsvReader, EncodingErrors
from sluiceway_files._csv_columns import CsvColumns
from sluiceway_files._directories import partition_schema
from sluiceway_files._lined import JsonLines, OnError, Text
from sluiceway_files._lined_columns import JsonColumns
from sluiceway_files._parquet import Parquet, ParquetColumns, need_pyarrow
from sluiceway_files._places import (
    Found,
    Paths,
    absolute,
    failing_with,
    find,
    find_by_name,
    open_filesystem,
    paths_of,
    shown,
)
from sluiceway_files._sizes import fitting_size
from sluiceway_files._splits import FileSplit, Format, OpenFile, SplitReader
from sluiceway_files._typed import check_record_type, record_type_of
from sluiceway_files._watching import Discovered, WatchingEnumerator

__all__ = ["FilesSource"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    R = TypeVar("R")
else:
    from typing import TypeVar

    T, R = TypeVar("T"), TypeVar("R")


class FilesSource(Source[T], metaclass=HintingType):
    """Source of the records in files. Created by one of its class methods, one per format.

    Paths are files, directories (read with all below them) or globs, local or with the scheme of a filesystem
    that fsspec knows (``memory://``, ``s3://`` where s3fs is installed); URLs are taken as they are, without
    percent-decoding. Names that begin with ``.`` or ``_`` are left out of directories and globs; another directory
    in them that cannot be listed fails the job. Files are listed once, when the job starts, and read in the order
    of their paths; readers take the next file, or part of a file, whenever they are done with one. Compressed
    files are known by their suffix: ``.gz``, ``.bz2``, ``.xz``, ``.zst``. The source ends when all are read.

    Text and JSON lines are read in parts, in the order of the file within each part. With one reader a part is
    about 32 MiB, and the parts come one after another: the order is that of the file. Several readers read parts
    of a file at the same time: of what is listed together each gets about eight, of at least 1 MiB (8 MiB where
    files are not on a local disk) and at most 32 MiB. A ``split_size`` above the size of every file keeps files
    whole, so that the records of a file keep their order at any parallelism. A part of a Parquet file is a row
    group, or a run of small ones of at most 8 MiB. Whole are compressed files, CSV files, and files on a
    filesystem that cannot seek or does not tell their size.

    With ``watch`` it does not end: it looks for new files at this interval, and reads each of them once, those of
    a look in the order of their paths. Paths need not stand for anything yet. A file is taken when two looks find
    it with the same size and time of modification, or when it was modified longer ago than one interval; what is
    appended later may not be read. Therefore write a file under a name that begins with ``.`` or ``_``, and rename
    it when it is complete. Taken files have to stay until they are read.

    The files that were taken are part of checkpoints: memory and each checkpoint hold path, size and time of every
    file that is there or has gone within a day, so move or delete old ones. A file that has gone and comes back
    with another size or time is a new file. One that is replaced in place is not: a warning is logged. Between
    files event time does not advance, unless the watermark strategy has ``with_idleness``.

    Positions can be snapshotted and restored as long as the files stay as they are; in a compressed file,
    what lies before the position is decompressed again. Files are read in the task's thread, a bounded chunk
    (in Parquet a row group) at a time: a slow filesystem holds up everything else in its worker.

    A path that stands for nothing, a file that cannot be read and a record that is not what its format says
    fail the job with a ConnectorError that names the file and, where there are lines, the line.
    """

    def __init__(
        self,
        paths: Paths,
        form: Format | None = None,
        *,
        compression: Literal["infer"] | Compression | None = "infer",
        split_size: int | None = None,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(form, Format):
            raise ConfigurationError(
                "FilesSource is made by FilesSource.text, .csv, .json_lines or .parquet, which take the paths"
            )
        self._paths = paths_of(paths)
        self._format = form
        _compression.check(compression, "infer")
        self._compression = compression
        if split_size is not None and (not isinstance(split_size, int) or split_size < 1):
            raise ConfigurationError(f"split_size={split_size!r} must be a number of bytes, at least 1, or None")
        self._split_size = split_size
        self._watch_ms = watch_interval_ms(watch)
        self._options = dict(storage_options or {})

    @classmethod
    def text(
        cls,
        paths: Paths,
        *,
        encoding: str = "utf-8",
        errors: DecodeErrors = "strict",
        compression: Literal["infer"] | Compression | None = "infer",
        split_size: int | None = None,
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[str]:
        """Read the lines of text files, as strings without the line feed and a carriage return before it.

        Args:
            paths: a path or several.
            encoding: how the text is encoded.
            errors: what becomes of a line that cannot be decoded: ``strict`` fails the job, ``replace`` puts
                U+FFFD for what is wrong, ``ignore`` leaves that out, ``skip`` leaves the line out (and counts
                it in the metric ``records_skipped``).
            compression: ``infer`` from the suffix, None, or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            split_size: about how many bytes of an uncompressed file make a part that a reader takes at a time;
                None: by size and parallelism, see :class:`FilesSource`.
            max_line_length: bytes in a line above which the job fails.
            watch: time between looks for new files: a timedelta, ms, or a text such as ``1s``; None: no looks.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: zstd was asked for and zstandard is not installed.
        """
        check_encoding(encoding, "\n")
        _check_line_feed(encoding)
        _check_length(max_line_length)
        LineDecoder("\n", encoding, errors, "")
        form = Text(max_line_length, encoding, errors)
        lines: FilesSource[Any] = cls(
            paths,
            form,
            compression=compression,
            split_size=split_size,
            watch=watch,
            storage_options=storage_options,
        )
        return lines

    @overload
    @classmethod
    def json_lines(
        cls,
        paths: Paths,
        *,
        type: type[R],
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        split_size: int | None = None,
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[R]: ...
    @overload
    @classmethod
    def json_lines(
        cls,
        paths: Paths,
        *,
        type: Any = None,
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        split_size: int | None = None,
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]: ...
    @classmethod
    def json_lines(
        cls,
        paths: Paths,
        *,
        type: Any = None,  # noqa: A002 - the word for it everywhere here
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        split_size: int | None = None,
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]:
        """Read the JSON values in files with one per line. Blank lines are passed over.

        Args:
            paths: a path or several.
            type: what each value is to become and be checked against: anything msgspec decodes, such as a
                dataclass; or a ``pyarrow.Schema``, for dicts with its fields; None: plain dicts, lists, strings
                and numbers.
            on_error: ``fail`` the job for a line that is not JSON or not of the type, or ``skip`` it (counted
                in the metric ``records_skipped``).
            compression: ``infer`` from the suffix, None, or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            split_size: about how many bytes of an uncompressed file make a part that a reader takes at a time;
                None: by size and parallelism, see :class:`FilesSource`.
            max_line_length: bytes in a line above which the job fails.
            watch: time between looks for new files: a timedelta, ms, or a text such as ``1s``; None: no looks.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: zstd was asked for and zstandard is not installed.
        """
        _check_on_error(on_error)
        _check_length(max_line_length)
        record_type, schema = record_type_of(type)
        form = JsonLines(max_line_length, record_type, on_error, schema)
        return cls(
            paths,
            form,
            compression=compression,
            split_size=split_size,
            watch=watch,
            storage_options=storage_options,
        )

    @overload
    @classmethod
    def csv(
        cls,
        paths: Paths,
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        quotechar: str = '"',
        type: type[R],
        encoding: str = "utf-8",
        errors: EncodingErrors = "strict",
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[R]: ...
    @overload
    @classmethod
    def csv(
        cls,
        paths: Paths,
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        quotechar: str = '"',
        type: Any = None,
        encoding: str = "utf-8",
        errors: EncodingErrors = "strict",
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]: ...
    @classmethod
    def csv(
        cls,
        paths: Paths,
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        quotechar: str = '"',
        type: Any = None,  # noqa: A002
        encoding: str = "utf-8",
        errors: EncodingErrors = "strict",
        on_error: OnError = "fail",
        compression: Literal["infer"] | Compression | None = "infer",
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]:
        """Read the rows of CSV files: dicts of strings by column name, or tuples of strings.

        Blank lines are passed over. A quoted field may hold line ends; therefore a file is read by one reader.

        Args:
            paths: a path or several.
            header: True: the first row of each file has the column names. A list: they are these, and the
                first row is a record. False: there are none, and records are tuples.
            delimiter: between fields, one character.
            quotechar: around fields, one character.
            type: what each row is to become: a dataclass, a NamedTuple or anything else msgspec makes of a
                dict of strings, with the strings turned into numbers, dates and so on as its fields say; or a
                ``pyarrow.Schema``, for dicts with its fields. A tuple takes the fields in their order; so does a
                NamedTuple, unless the names of the columns include all of its own. An empty field is None where
                None is allowed and text is not, as in ``float | None``.
            encoding: how the text is encoded.
            errors: what becomes of undecodable bytes: ``strict`` fails the job, ``replace`` puts U+FFFD,
                ``ignore`` leaves them out.
            on_error: ``fail`` the job for a row with too few or too many fields, wrong quotes or a field that
                does not fit the type, or ``skip`` it (counted in the metric ``records_skipped``).
            compression: ``infer`` from the suffix, None, or one of ``gzip``, ``bz2``, ``xz``, ``zstd``.
            max_line_length: bytes in a line above which the job fails, and characters in a quoted field of lines.
            watch: time between looks for new files: a timedelta, ms, or a text such as ``1s``; None: no looks.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: zstd was asked for and zstandard is not installed.
        """
        check_encoding(encoding, "\n")
        _check_line_feed(encoding)
        _check_on_error(on_error)
        _check_length(max_line_length)
        for name, sign in (("delimiter", delimiter), ("quotechar", quotechar)):
            if not isinstance(sign, str) or len(sign) != 1:
                raise ConfigurationError(f"{name}={sign!r} must be one character")
        if errors not in ("strict", "replace", "ignore"):
            raise ConfigurationError(f"errors={errors!r} must be 'strict', 'replace' or 'ignore'")
        names = header if isinstance(header, bool) else tuple(header)
        if not isinstance(names, bool) and len(set(names)) < len(names):
            raise ConfigurationError(f"header={header!r} has two columns of the same name")
        record_type, schema = record_type_of(type)
        if schema is not None and names is False:
            names = tuple(schema.names)
        form = Csv(delimiter, quotechar, names, record_type, encoding, errors, on_error, max_line_length, schema)
        return cls(paths, form, compression=compression, watch=watch, storage_options=storage_options)

    @overload
    @classmethod
    def parquet(
        cls,
        paths: Paths,
        *,
        columns: Iterable[str] | None = None,
        filters: Filters | None = None,
        partitions: Any = None,
        type: type[R],
        on_error: OnError = "fail",
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[R]: ...
    @overload
    @classmethod
    def parquet(
        cls,
        paths: Paths,
        *,
        columns: Iterable[str] | None = None,
        filters: Filters | None = None,
        partitions: Any = None,
        type: Any = None,
        on_error: OnError = "fail",
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]: ...
    @classmethod
    def parquet(
        cls,
        paths: Paths,
        *,
        columns: Iterable[str] | None = None,
        filters: Filters | None = None,
        partitions: Any = None,
        type: Any = None,  # noqa: A002
        on_error: OnError = "fail",
        watch: timedelta | int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FilesSource[Any]:
        """Read the rows of Parquet files, as dicts; needs pyarrow. Readers take a row group, or some small ones.

        Maps are dicts, and times Python's. A time that Python has none for, with fractions of a microsecond or a
        year beyond 9999, does not fit, see ``on_error``; :meth:`Pipeline.table` reads it.

        Args:
            paths: a path or several.
            columns: which columns to read; None: all.
            filters: which rows to read: a list of ``(column, operator, value)`` that must all hold, or a list of
                such lists, one of which must hold; None: all rows. Operators are ``= == != < <= > >=``, and ``in``
                and ``not in`` with a list. Values have the column's type, which need not be in ``columns``. As in
                SQL no comparison holds for null. Row groups without such rows by their statistics are not read.
            partitions: columns that the directories of the files are named after, as in ``day=2026-01-02``: a
                ``pyarrow.Schema`` with texts, integers, booleans or dates, or names of columns of text. They come
                after those of the files. Files that ``filters`` exclude by them are not opened.
            type: what each row is to become: anything msgspec makes of a dict, such as a dataclass.
            on_error: ``fail`` the job for a row that does not fit the type, or with a value that Python has none
                for, or ``skip`` it (counted in the metric ``records_skipped``).
            watch: time between looks for new files: a timedelta, ms, or a text such as ``1s``; None: no looks.
            storage_options: passed to the filesystem.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: pyarrow is not installed.
        """
        need_pyarrow()
        _check_on_error(on_error)
        check_record_type(type)
        conditions = None if filters is None else conditions_of(filters)
        directories = None if partitions is None else partition_schema(partitions)
        form = Parquet(None if columns is None else tuple(columns), type, on_error, conditions, directories)
        return cls(paths, form, compression=None, watch=watch, storage_options=storage_options)

    @classmethod
    def of(cls, paths: Paths, format: str = "text", **options: Any) -> FilesSource[Any]:  # noqa: A002
        """By the name of a format: ``text``, ``csv``, ``json_lines`` or ``parquet``."""
        formats: dict[str, Callable[..., FilesSource]]
        formats = {"text": cls.text, "csv": cls.csv, "json_lines": cls.json_lines, "parquet": cls.parquet}
        if format not in formats:
            raise choose("file format", format, formats)
        return formats[format](paths, **options)

    def __getstate__(self) -> dict[str, Any]:
        # A worker may have another working directory.
        state = {**self.__dict__, "_paths": tuple(map(absolute, self._paths))}
        state.pop("_places", None)
        return state

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """URLs and absolute paths, those of the first use: functions may change the working directory later."""
        return tuple(map(absolute, self._paths))

    def __repr__(self) -> str:
        return f"FilesSource({', '.join(repr(redact(path)) for path in self._paths)})"

    @property
    def boundedness(self) -> Boundedness:
        """Return bounded, unless the source watches for new files."""
        return Boundedness.BOUNDED if self._watch_ms is None else Boundedness.UNBOUNDED

    @property
    def output_type(self) -> Any:
        """Return str for text; else the declared type."""
        return self._format.output_type

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the rows in columns, and their schema; None for text.

        The schema is that of ``type=``; without it, of the first file: for CSV its columns are strings.

        Raises:
            ConnectorError: there is no file yet whose schema could be read, ``type=`` is missing for JSON lines,
                or it was given for Parquet.
            SerializationError: ``type=`` has a field that has no type in Arrow.
        """
        form = self._format
        if isinstance(form, Text):
            return None
        need_pyarrow()
        in_columns: Format
        if isinstance(form, Parquet):
            if form.type is not None:
                raise ConnectorError(f"{self!r} has type=, which is for records: leave it out for columns")
            schema = self._in_first_file(form.schema_in)
            in_columns = ParquetColumns(
                form.columns or tuple(schema.names), None, form.on_error, form.filters, form.partitions, schema
            )
        else:
            assert isinstance(form, JsonLines | Csv)
            schema = self._schema_of(form)
            fields = {**form.__dict__, "schema": schema}
            in_columns = CsvColumns(**fields) if isinstance(form, Csv) else JsonColumns(**fields)
        source = copy(self)
        source._format = in_columns
        return source, schema

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that leaves out columns, files and row groups; None where it does not read Parquet."""
        form = self._format
        if not isinstance(form, ParquetColumns):
            return None
        import pyarrow

        # One column is read, if none is needed, for the number of the rows.
        names = [name for name in form.schema.names if columns is None or name in columns] or form.schema.names[:1]
        schema = pyarrow.schema([form.schema.field(name) for name in names])
        skipped = None if conditions is None else tuple(tuple(Condition(*c) for c in each) for each in conditions)
        source = copy(self)
        source._format = replace(form, columns=tuple(names), schema=schema, skipped=skipped)
        return source, schema

    def _schema_of(self, form: JsonLines | Csv) -> Any:
        from sluiceway.columns.schemas import schema_of

        if form.schema is not None or form.type is not None:
            return schema_of(form.type if form.schema is None else form.schema)
        if isinstance(form, JsonLines):
            raise ConnectorError(
                f"{self!r}: JSON lines in columns need type=, a class with a field per column or a pyarrow.Schema"
            )
        if form.header is False:
            raise ConnectorError(
                f"{self!r}: CSV in columns needs their names: header=, or type=, a class with a field per column "
                "or a pyarrow.Schema"
            )
        names = form.header
        if names is True:
            names = self._in_first_file(partial(_names_in, form, self._compression_of))
        import pyarrow

        return schema_of(pyarrow.schema([pyarrow.field(name, pyarrow.string(), nullable=False) for name in names]))

    def _in_first_file(self, look: Callable[[Any, str], Any]) -> Any:
        found = find(self._places, self._options)
        if not found:
            raise ConnectorError(f"{self!r} has no file yet, so that the columns are not known")
        filesystem = self._filesystem(found[0].root)
        name = shown(filesystem, found[0].path)
        with failing_with(f"read {name}"), filesystem.open(found[0].path, "rb") as raw:
            return look(raw, name)

    @property
    @override
    def gives_timestamps(self) -> bool:
        return False

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Create the enumerator, which lists the files when it is started."""
        if self._watch_ms is None:
            # Without watch, the restored source reads the files found until then.
            pending = restored.pending if isinstance(restored, Discovered) else restored
            return SearchingEnumerator(context, self._plan, pending)
        if not isinstance(restored, Discovered | None):
            raise ConnectorError(
                f"{self!r} cannot resume from a checkpoint that was taken without watch=: that does not say which "
                "files were read. Give the source another uid, so that it starts from the beginning, or leave "
                "watch= out"
            )
        return WatchingEnumerator(
            context,
            partial(find_by_name, self._places, self._options, must_be=False),
            partial(self._planner, context.parallelism),
            self._watch_ms,
            restored or Discovered(),
        )

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Create a reader of files and parts of files."""
        return _FilesReader(context, self)

    def _plan(self, readers: int = 1) -> list[FileSplit]:
        files = find(self._places, self._options)
        plan = self._planner(readers, files)
        return [split for file in files for split in plan(file)]

    def _planner(self, readers: int, files: Sequence[Found]) -> Callable[[Found], list[FileSplit]]:
        """Return a function that returns the splits of any of ``files``, which are read together."""
        size = self._split_size
        if size is None:
            uncompressed = [file for file in files if self._compression_of(file.path) is None]
            roots = {file.root for file in uncompressed}
            local = all(isinstance(self._filesystem(root), LocalFileSystem) for root in roots)
            least = self._format.least_split(local=local)
            size = fitting_size((file.size or 0 for file in uncompressed), readers, least)
        return partial(self._plan_one, split_size=size)

    def _plan_one(self, file: Found, *, split_size: int) -> list[FileSplit]:
        filesystem = self._filesystem(file.root)
        name = shown(filesystem, file.path)
        compression = self._compression_of(file.path)
        with failing_with(f"read {name}"):
            opener = partial(filesystem.open, file.path, "rb")
            return self._format.plan(file, name, opener, compression, split_size)

    def _filesystem(self, root: int) -> Any:
        return open_filesystem(self._places[root], self._options)[0]

    def _compression_of(self, path: str) -> Compression | None:
        found = _compression.of_name(path) if self._compression == "infer" else self._compression
        _compression.check(found)
        return found


class _FilesReader(SimpleReader[Any]):
    def __init__(self, context: ReaderContext, source: FilesSource) -> None:
        super().__init__(context)
        self._source = source
        self._split: FileSplit | None = None
        self._name = ""
        self._raw: Any = None
        self._reader: SplitReader | None = None

    def open_split(self, split: FileSplit) -> None:
        source = self._source
        if split.root >= len(source._places):
            raise IncompatibleStateError(
                f"{source!r} cannot resume from this checkpoint: {split.path} is left to read, of path number "
                f"{split.root + 1} of the source, which has {len(source._places)} now. Give it as many paths as "
                "before, in their order, or another uid, so that it starts from the beginning"
            )
        filesystem = source._filesystem(split.root)
        self._split = split
        self._name = shown(filesystem, split.path)
        if not source._format.may_hold(split.path, self._name):
            return
        with failing_with(f"read {self._name}"):
            self._raw = filesystem.open(split.path, "rb")
            file = OpenFile(self._raw, source._compression_of(split.path), self._name, self.context.metrics)
            self._reader = source._format.read(file, split)

    def read(self, limit: int) -> Poll[Any]:
        if self._reader is None:
            return END_OF_INPUT
        with failing_with(f"read {self._name}"):
            return self._reader.read(limit)

    def position(self) -> FileSplit | None:
        return self._split if self._reader is None else self._reader.position()

    def close_split(self) -> None:
        reader, self._reader = self._reader, None
        raw, self._raw = self._raw, None
        try:
            if reader is not None:
                reader.close()
        finally:
            if raw is not None:
                raw.close()


def _names_in(
    form: Csv, compression_of: Callable[[str], Compression | None], raw: Any, name: str
) -> tuple[str, ...]:
    reader = CsvReader(form, OpenFile(raw, compression_of(name), name, MetricGroup()), FileSplit(0, name))
    with closing(reader):
        names = reader.names()
    if names is None:
        raise ConnectorError(f"{name} is empty, so that the columns are not known")
    return names


def _check_line_feed(encoding: str) -> None:
    if "\n".encode(encoding) != b"\n":
        raise ConfigurationError(f"files in encoding={encoding!r} cannot be read by lines: store them as utf-8")


def _check_on_error(on_error: str) -> None:
    if on_error not in ("fail", "skip"):
        raise ConfigurationError(f"on_error={on_error!r} must be 'fail' or 'skip'")


def _check_length(max_line_length: int) -> None:
    if not isinstance(max_line_length, int) or max_line_length < 1:
        raise ConfigurationError(f"max_line_length={max_line_length!r} must be a number of bytes, at least 1")
