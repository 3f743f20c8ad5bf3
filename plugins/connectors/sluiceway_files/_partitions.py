"""Files in directories that are named after values of their rows, as Hive names them."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from sluiceway.connector import CommittingSinkWriter
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, RejectedRecordError, unknown_column
from sluiceway_files._encoders import as_mapping
from sluiceway_files._places import failing_with, shown
from sluiceway_files._writers import CommittingFilesWriter, FilesWriter

__all__ = ["NULL", "PartitionedWriter", "can_name", "checked_names", "problems_of_partitions"]

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Name that stands for null."""

_GROUPS_HELD: Final = 10
"""Row groups in memory, of all open files."""
_PLACES: Final = 10_000
"""Directories that a writer remembers to have made."""
_KINDS: Final = "text, integers, booleans or dates"


def checked_names(names: str | Sequence[str], schema: Any) -> tuple[str, ...]:
    """Return the columns that partitions are named after.

    Raises:
        ConfigurationError: they are no names, a schema does not have them, or has nothing else.
    """
    checked = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) and name for name in checked) or len(set(checked)) < len(checked):
        raise ConfigurationError(f"partition_by={names!r} must be the name of a column, or several different ones")
    for name in checked if schema is not None else ():
        if name not in schema.names:
            raise ConfigurationError(f"partition_by={name!r}: schema= has no such column")
        if not can_name(kind := schema.field(name).type):
            raise ConfigurationError(
                f"partition_by={name!r}: the column has {kind}; partitions are named after {_KINDS}"
            )
    if checked and schema is not None and len(checked) == len(schema.names):
        raise ConfigurationError(f"partition_by={names!r} leaves no column of schema= to write")
    return checked


class PartitionedWriter(CommittingSinkWriter[Any]):
    """Writer with a file for each of several partitions.

    Args:
        root: the writer of the directory; each file has one like it. It commits the files of all of them.
    """

    def __init__(self, root: FilesWriter | CommittingFilesWriter) -> None:
        self._root = root
        self._output = root.output
        self._open: dict[str, FilesWriter | CommittingFilesWriter] = {}  # the one written to last at the end
        self._made: set[str] = set()
        self._numbers: Iterator[int] = itertools.count()
        form: Any = self._output.format
        self._most_held = _GROUPS_HELD * form.row_group_size
        self._ready: list[Any] = []
        self._unknown: list[tuple[FilesWriter | CommittingFilesWriter, str]] = []

    def open(self) -> None:
        self._root.open()
        self._numbers = itertools.count(self._root.number)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        parts = self._of_columns(values.data) if type(values) is Columns else self._of_records(values)
        for place, rows in parts:
            file = self._open.pop(place, None)
            if file is None:
                if len(self._open) >= self._output.max_open:
                    self._complete(next(iter(self._open)))
                file = self._file(place)
            self._open[place] = file
            file.write(rows, None)
            if not file.has_open_file:  # it was large or old enough
                self._collect(place)
        held = {place: file.encoder.held for place, file in self._open.items() if file.encoder is not None}
        total = sum(held.values())
        # The bound on memory. The largest go first, so that few row groups are cut short.
        for place in sorted(held, key=held.__getitem__, reverse=True):
            if total <= self._most_held:
                break
            encoder = self._open[place].encoder
            assert encoder is not None
            with failing_with(f"write {shown(self._root.filesystem, self._root.path(place))}"):
                encoder.release()
            total -= held[place]

    def flush(self) -> None:
        for place, file in list(self._open.items()):
            file.flush()
            if not file.has_open_file:
                self._collect(place)

    def finish(self) -> None:
        for place in list(self._open):
            self._complete(place)

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        self.finish()
        ready, self._ready, self._unknown = self._ready, [], []
        return ready

    def commit(self, committables: Sequence[Any]) -> None:
        self._root.commit(committables)

    def recover(self, committables: Sequence[Any]) -> None:
        self._root.recover(committables)

    def close(self) -> None:
        files, self._open = self._open, {}
        for file in files.values():
            file.close()
        unknown, self._unknown = self._unknown, []
        for file, name in unknown:
            file.remove(name)

    # ---- files ----------------------------------------------------------------------------------------------

    def _file(self, place: str) -> FilesWriter | CommittingFilesWriter:
        """Return the writer of a file in a partition."""
        root = self._root
        file = type(root)(self._output, root.context)
        file.filesystem, file.directory, file.number = root.filesystem, root.path(place), next(self._numbers)
        if isinstance(file, CommittingFilesWriter) and isinstance(root, CommittingFilesWriter):
            file.attempt = root.attempt
        if place not in self._made:
            with failing_with(f"write to {shown(root.filesystem, file.directory)}"):
                root.filesystem.makedirs(file.directory, exist_ok=True)
            if len(self._made) >= _PLACES:
                self._made.clear()
            self._made.add(place)
        return file

    def _complete(self, place: str) -> None:
        self._open[place].finish()
        self._collect(place)

    def _collect(self, place: str) -> None:
        """Take what a complete file has for the next checkpoint."""
        file = self._open.pop(place)
        if isinstance(file, CommittingFilesWriter):
            ready, unknown = file.take_ready()
            self._ready += ready
            self._unknown += [(file, name) for name in unknown]

    # ---- partitions -----------------------------------------------------------------------------------------

    def _of_columns(self, data: Any) -> Iterator[tuple[str, Any]]:
        """Yield the directory and the rows of each partition, in the order of their first rows."""
        from sluiceway.columns.partitions import partitions

        names = self._output.partition_by
        self._check(data.schema)
        for values, rows in partitions(data, names):
            yield "/".join(_directory(name, values[name]) for name in names), Columns(rows)

    def _check(self, schema: Any) -> None:
        if problems := problems_of_partitions(self._output.partition_by, schema):
            raise RejectedRecordError(f"FilesSink: {problems[0]}")

    def _of_records(self, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
        names = self._output.partition_by
        parts: dict[str, list[Any]] = {}
        for value in values:
            row = dict(as_mapping(value) or {})
            try:
                place = "/".join([_directory(name, row.pop(name)) for name in names])
            except KeyError as error:
                raise RejectedRecordError(
                    f"FilesSink: {value!r:.200} ({type(value).__name__}) has no {error.args[0]!r}, which "
                    "partition_by= names"
                ) from None
            if not row:
                raise RejectedRecordError(
                    f"FilesSink: partition_by={list(names)} leaves nothing of {value!r:.200}"
                )
            parts.setdefault(place, []).append(row)
        yield from parts.items()


def problems_of_partitions(names: Sequence[str], schema: Any) -> list[str]:
    """Return why rows with the columns of a ``pyarrow.Schema`` cannot be partitioned by some of them."""
    found = []
    for name in names:
        if name not in schema.names:
            found.append(f"partition_by={name!r}: {unknown_column(name, schema.names)}")
        elif not can_name(schema.field(name).type):
            kind = schema.field(name).type
            found.append(f"partition_by={name!r} has {kind}; partitions are named after {_KINDS}: cast it before")
    if names and set(schema.names) <= set(names):
        found.append(f"partition_by={list(names)} leaves no column to write")
    return found


def can_name(kind: Any) -> bool:
    """Return whether directories can be named after the values of a type."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        kind in (pa.string(), pa.large_string(), pa.bool_(), pa.date32(), pa.date64()) or pa.types.is_integer(kind)
    )


def _directory(name: str, value: Any) -> str:
    """Return the name of the directory for a value, such as ``day=2026-01-01``."""
    if value is None:
        text = NULL
    elif isinstance(value, str):
        if value == NULL:  # escaped, too, readers take it for null
            raise RejectedRecordError(
                f"FilesSink: partition_by={name!r} is {value!r}, the name that stands for null"
            )
        try:
            text = quote(value, safe="")
        except UnicodeEncodeError as error:
            raise RejectedRecordError(
                f"FilesSink: partition_by={name!r} is {value!r:.100}, which is no text: {error.reason}"
            ) from error
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int) or type(value) is datetime.date:
        text = str(value)
    else:
        raise RejectedRecordError(
            f"FilesSink: partition_by={name!r} is {value!r:.100} ({type(value).__name__}); partitions are named "
            f"after {_KINDS}"
        )
    return f"{quote(name, safe='')}={text}"
