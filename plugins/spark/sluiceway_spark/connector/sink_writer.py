"""Writer of SparkSink: columnar files that Spark does not see until their checkpoint is complete."""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError, SuppressRestartsError
from sluiceway_spark.connector.column_file import SUFFIXES, ColumnFile, schema_in
from sluiceway_spark.connector.partition_directories import check_partitions, split
from sluiceway_spark.connector.target_directory import Place, absolute
from sluiceway_spark.conversion.arrow_schema import for_spark
from sluiceway_spark.conversion.records_to_arrow import Columns
from sluiceway_spark.persisted import AddedFile, RemovedFiles

__all__ = ["SparkSinkWriter", "TakenError", "Target"]

_log: Final = logging.getLogger("sluiceway_spark")

_RECORDS_HELD: Final = 8192
_BYTES_HELD: Final = 128 * 1024 * 1024
_OPEN_FILES: Final = 64
_STAGED: Final = "staged"


class TakenError(ConnectorError, SuppressRestartsError):
    """The target has data that must not be changed, or of another schema. A restart of the job does not help."""


@dataclass(frozen=True)
class Target:
    """Target of a sink, as configured.

    Attributes:
        path: of the directory, or its URL.
        schema: an Arrow schema, or None: that of the first record's type.
        form: ``parquet`` or ``orc``.
        codec: compression inside files.
        partition_by: columns that become directories.
        mode: ``error``, ``append`` or ``overwrite``.
        row_group_size: rows that are written together.
        file_size: bytes after which a file is complete, or None.
        options: for the filesystem.
        token: of the description: of one job's sinks they are all alike.
        table: name of the table that the directory is of; empty: it is of none.
    """

    path: str
    schema: Any
    form: str
    codec: str
    partition_by: tuple[str, ...]
    mode: str
    row_group_size: int
    file_size: int | None
    options: Mapping[str, Any] = field(default_factory=dict)
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    table: str = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "path": absolute(self.path)}

    def __str__(self) -> str:
        return f"SparkSink to {f'table {self.table}' if self.table else self.path}"

    @property
    def suffix(self) -> str:
        """Suffix of its file names."""
        codec = SUFFIXES.get(self.codec, self.codec)
        return f".{codec}.{self.form}" if codec else f".{self.form}"


@dataclass(slots=True)
class _Open:
    hidden: str
    directory: str
    file: ColumnFile


class SparkSinkWriter(CommittingSinkWriter[Any]):
    """Writer of one file per partition, checkpoint and subtask, or more where they are large.

    Files are written beside what is seen, under names that begin with a dot, which tell the job, the step, the
    subtask and the attempt that they are of: so nobody disturbs another attempt, and whoever comes next finds
    what was left.

    Args:
        target: what was asked for.
        context: given by the runtime.
    """

    def __init__(self, target: Target, context: WriterContext) -> None:
        self._target = target
        self._context = context
        self._columns = Columns(target.schema, str(target))
        self._attempt = f"{target.token}-{uuid.uuid4().hex[:8]}"
        self._owner = hashlib.sha256(f"{context.job_name}\0{context.uid}".encode()).hexdigest()[:8]
        self._place: Place | None = None
        self._records: list[Any] = []
        self._open: dict[str, _Open] = {}  # by directory, those used last at the end
        self._number = 0
        self._complete: list[_Open] = []
        self._file_schema: Any = None
        self._removed: tuple[str, ...] = ()
        self._is_empty = False  # nothing to be seen, and nothing written
        self._beside: str | None = None  # a file whose types are to be compared

    @property
    def place(self) -> Place:
        """Return the directory of the files."""
        if self._place is None:
            self._place = Place(absolute(self._target.path), self._target.options)
        return self._place

    def open(self) -> None:
        """Create the directory and, in a first attempt, apply the mode to the files in it. Raises TakenError."""
        with self.place.failing_with("write to"):
            self.place.make()
            # What is there now may be of this run: the mode was applied when the run began.
            if self._context.is_restored:
                return
            there = self._earlier()
        self._is_empty = not there
        if self._target.mode == "overwrite":
            self._removed = tuple(there)
            self._is_empty = True
        elif there and self._target.mode == "error":
            raise TakenError(
                f"{self._target}: there is {min(there)} already. Take another path, or mode='append' to write "
                "beside it, or mode='overwrite' to have it go with the first commit"
            )
        elif there:
            self._check_beside(there)

    def recover(self, committables: Sequence[Any]) -> None:
        """Commit again, and remove the hidden files of earlier attempts."""
        self._commit(committables, again=True)
        with self.place.failing_with("write to"):
            self._remove_left()

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Collect records, and convert them to Arrow batches in groups of some thousand."""
        self._records += values
        if len(self._records) >= _RECORDS_HELD or _is_columns(values):
            self._convert()

    def flush(self) -> None:
        """Do nothing: files are completed at a checkpoint."""

    def finish(self) -> None:
        """Complete all files; without any row, write one empty file that has the columns."""
        self._complete_all()
        schema = self._columns.schema
        if self._is_empty and not self._context.subtask and not self._target.partition_by and schema is not None:
            with self.place.failing_with("write to"):  # so that Spark knows the columns of no rows
                self._begin("", schema)
                self._complete_one("")

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        """Complete all files and return their committables, with the removal of earlier files first."""
        self._complete_all()
        ready: list[Any] = [RemovedFiles(self._removed)] if self._removed else []
        for number, done in enumerate(self._complete):
            name = f"part-{self._context.subtask:05d}-{checkpoint_id:06d}-{number:03d}-{self._attempt}"
            name += self._target.suffix
            ready.append(AddedFile(done.hidden, f"{done.directory}/{name}" if done.directory else name))
        if self._complete and self._context.has_checkpoints:
            with self.place.failing_with("write to"):
                self.place.sync({""})
        self._complete, self._removed = [], ()
        return ready

    def commit(self, committables: Sequence[Any]) -> None:
        """Give files their visible names."""
        self._commit(committables, again=False)

    def close(self) -> None:
        """Remove the files that no commit was prepared for."""
        left, self._open = list(self._open.values()), {}
        self._records = []
        for one in left:
            with suppress(Exception):  # what is not complete counts for nothing
                one.file.abandon()
            with suppress(Exception):
                one.file.file.close()
        complete, self._complete = self._complete, []
        for one in (*left, *complete):
            with suppress(OSError):
                self.place.remove(one.hidden)

    def _convert(self) -> None:
        records, self._records = self._records, []
        for batch in self._columns.batches(records):
            if self._file_schema is None:
                self._set_file_schema()
            for directory, part in split(batch, self._target.partition_by):
                if part.num_rows:
                    with self.place.failing_with("write to"):
                        self._add(directory, part)

    def _set_file_schema(self) -> None:
        schema, names = self._columns.schema, self._target.partition_by
        if self._target.schema is None:
            check_partitions(schema, names, str(self._target))
            self._check_types(schema)
        for name in names:
            schema = schema.remove(schema.get_field_index(name))
        self._file_schema = schema

    def _add(self, directory: str, batch: Any) -> None:
        one = self._open.pop(directory, None)
        if one is None:
            if len(self._open) >= _OPEN_FILES:
                self._complete_one(next(iter(self._open)))
            one = self._begin(directory, self._file_schema)
        self._open[directory] = one  # the last
        one.file.add(batch)
        if one.file.rows < self._target.row_group_size:
            # The bound on memory of all partitions; beyond it the largest part is written as a short row group.
            if sum(other.file.held for other in self._open.values()) <= _BYTES_HELD:
                return
            one = max(self._open.values(), key=lambda other: other.file.held)
        one.file.write()
        if self._target.file_size is not None and one.file.written >= self._target.file_size:
            self._complete_one(one.directory)

    def _begin(self, directory: str, schema: Any) -> _Open:
        hidden = f".part-{self._context.subtask}-{self._number}-{self._attempt}.{self._owner}.{_STAGED}"
        self._number += 1
        self._is_empty = False
        file = self.place.create(hidden)
        try:
            target = self._target
            columns = ColumnFile(file, target.form, target.codec, schema, str(target))
        except BaseException:
            file.close()
            self.place.remove(hidden)
            raise
        self._open[directory] = one = _Open(hidden, directory, columns)
        return one

    def _complete_one(self, directory: str) -> None:
        one = self._open[directory]
        one.file.finish()
        self.place.close(one.file.file, durably=self._context.has_checkpoints)
        self._complete.append(self._open.pop(directory))

    def _complete_all(self) -> None:
        self._convert()
        with self.place.failing_with("write to"):
            for directory in list(self._open):
                self._complete_one(directory)

    # -- what is seen --------------------------------------------------------------------------------------------

    def _commit(self, committables: Sequence[Any], *, again: bool) -> None:
        directories = set()
        with self.place.failing_with("commit to"):
            # Removals before additions: files of this commit are not read beside those that they replace.
            for one in committables:
                if isinstance(one, RemovedFiles):
                    self._remove_all(one.names)
            for one in committables:
                if not isinstance(one, AddedFile):
                    continue
                if self.place.publish(one.hidden, one.name):
                    directories.add(one.name.rpartition("/")[0])
                elif again:
                    # It was committed, most likely, and then taken away by those who it was for.
                    _log.warning("%s/%s is not there any more", self.place.shown, one.name)
                else:
                    raise ConnectorError(
                        f"cannot commit {self.place.shown}/{one.name}: neither it nor {one.hidden} is there any "
                        "more. Was it removed by hand, or does another job of this name write to it?"
                    )
            if directories:
                self.place.sync(directories)

    def _remove_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.place.remove(name)
            directory, slash, file = name.rpartition("/")
            self.place.remove(f"{directory}{slash}.{file}.crc")  # of Hadoop's
        for directory in {name.rpartition("/")[0] for name in names}:
            self.place.prune(directory)
        for mark in ("_SUCCESS", "._SUCCESS.crc"):
            self.place.remove(mark)

    def _remove_left(self) -> None:
        """Remove files left by the subtasks that this one replaces; no checkpoint refers to them."""
        pattern = re.compile(rf"\.part-(\d+)-.*\.{self._owner}\.{_STAGED}")
        for name in self.place.names():
            match = pattern.fullmatch(name)
            if match and int(match[1]) % self._context.parallelism == self._context.subtask:
                self.place.remove(name)

    # -- what is there already -----------------------------------------------------------------------------------

    def _earlier(self) -> list[str]:
        """Return the visible files of earlier runs. Files of other sinks are left to one subtask.

        Without checkpoints others may have committed by now. But those who have the place of this one have not.
        """
        own = re.compile(rf"(?:.*/)?part-(\d+)-\d+-\d+-{self._target.token}-[^/]*")
        mode, subtask, parallelism = self._target.mode, self._context.subtask, self._context.parallelism
        found = []
        for path in self.place.visible():
            match = own.fullmatch(path)
            if int(match[1]) % parallelism == subtask if match else mode != "overwrite" or not subtask:
                found.append(path)
        return found

    def _check_beside(self, there: Sequence[str]) -> None:
        """Refuse what Spark could not read together with what is there."""
        wanted = "/".join(self._target.partition_by)
        for path in there:
            found = "/".join(part.partition("=")[0] for part in path.split("/")[:-1])
            if found != wanted:
                raise TakenError(
                    f"{self._target}: there is {path}, which is partitioned by {found or 'nothing'}; "
                    f"partition_by= says {wanted or 'nothing'}, and Spark could not read them together"
                )
        self._beside = next((path for path in sorted(there) if path.endswith(self._target.form)), None)
        if self._target.schema is not None:
            self._check_types(self._target.schema)

    def _check_types(self, schema: Any) -> None:
        if self._beside is None:
            return
        import pyarrow as pa

        path, self._beside = self._beside, None
        with self.place.failing_with("read"), self.place.open(path) as file:
            try:
                found = for_spark(schema_in(file, self._target.form), path)
            except (pa.ArrowException, ConfigurationError) as error:
                raise TakenError(
                    f"{self._target}: {path}, which is there, cannot be gone on with: {error}"
                ) from error
        ours = {f.name: f.type for f in schema if f.name not in self._target.partition_by}
        theirs = {f.name: f.type for f in found}
        for name in sorted({*ours, *theirs}):
            if not _are_alike(ours.get(name), theirs.get(name)):
                raise TakenError(
                    f"{self._target}: column {name!r} is {ours.get(name, 'not there')}, but in {path}, which is "
                    f"there, {theirs.get(name, 'not there')}: Spark could not read them together"
                )


def _are_alike(one: Any, other: Any) -> bool:
    import pyarrow as pa

    if one is not None and other is not None and pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return True  # Spark's own files do not tell a zone
    return bool(one == other)


def _is_columns(values: Sequence[Any]) -> bool:
    return bool(values) and hasattr(values[0], "num_rows")
