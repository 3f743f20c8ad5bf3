"""Source that reads a table of Delta Lake."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sluiceway.columns.filters import Condition, Filters, RowFilter, conditions_of
from sluiceway.connector import (
    Alternatives,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Reader,
    ReaderContext,
    Source,
)
from sluiceway.connector.discovery import DiscoveringEnumerator, watch_interval_ms
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_lakehouse._delta_table import (
    DeltaPlace,
    check_readable,
    need_deltalake,
    schema_of_table,
)
from sluiceway_lakehouse._errors import MisfitError

__all__ = ["DeltaSource"]

_log: Final = logging.getLogger("sluiceway_lakehouse")


class DeltaSource(Source[Any]):
    """Source of the rows of a table of Delta Lake, with delta-rs; needs the extra ``delta``.

    ``Pipeline.table()`` reads them in columns, ``source()`` as records. It reads one version of the table, and
    ends. With ``watch`` it does not end: at this interval it looks for new versions, and reads the files that they
    have added, in the order of versions. A version that only rewrites files, such as ``OPTIMIZE``, is passed
    over; one that deletes or updates rows fails the job.

    Readers take a file at a time. Positions can be snapshotted and restored as long as the files stay: what
    ``VACUUM`` removes before it was read fails the job, as does a version that is not in the log any more.
    Columns that were added to the table after a file was written are null in it; those that are added while the
    job runs are not read. Column mapping, deletion vectors and files outside of the table are refused.

    Files are read in the task's thread: a slow object store holds up everything else in its worker.

    Args:
        table: path or URL of the table.
        columns: which columns to read; None: all.
        filters: which rows to read, as for ``FilesSource.parquet``: a list of ``(column, operator, value)`` that
            must all hold, or a list of such lists, one of which must. Files of other partitions, and row groups
            without such rows by their statistics, are not read.
        version: version of the table to read, and after which ``watch`` begins; None: the latest when the job
            starts.
        watch: time between looks for new versions: a timedelta, ms, or a text such as ``10s``; None: no looks.
        type: class of the records, such as a dataclass; None: dicts.
        storage_options: of the object store, as ``deltalake`` has them.

    Raises:
        ConfigurationError: one of them cannot be used.
        MissingExtraError: deltalake is not installed.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        columns: Iterable[str] | None = None,
        filters: Filters | None = None,
        version: int | None = None,
        watch: timedelta | int | str | None = None,
        type: Any = None,  # noqa: A002 - as FilesSource has it
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        need_deltalake()
        self._place = DeltaPlace.of(table, storage_options)
        if isinstance(columns, str):
            raise ConfigurationError(f"columns={columns!r} must be a list of names")
        self._columns = None if columns is None else tuple(columns)
        if self._columns is not None and not self._columns:
            raise ConfigurationError("columns=[] leaves no column to read")
        self._filters = None if filters is None else conditions_of(filters)
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise ConfigurationError(f"version={version!r} must be a whole number, at least 0, or None")
        self._version = version
        self._watch_ms = watch_interval_ms(watch)
        self._type = type
        self._in_columns = False
        self._wanted_in_columns: Any = None

    def __repr__(self) -> str:
        return f"DeltaSource({str(self._place)!r})"

    @property
    def name(self) -> str:
        """Name with the place of the table."""
        return str(self._place)

    @property
    def boundedness(self) -> Boundedness:
        """Bounded, unless it watches for new versions."""
        return Boundedness.BOUNDED if self._watch_ms is None else Boundedness.UNBOUNDED

    @property
    def output_type(self) -> Any:
        """Columns; of records the declared type, else dict."""
        if self._in_columns:
            return Columns
        return dict[str, Any] if self._type is None else self._type

    @property
    def gives_timestamps(self) -> bool:
        """False."""
        return False

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the rows in columns, and their schema.

        Raises:
            ConnectorError: the table does not exist, cannot be read, or lacks a column; or ``type`` was given.
        """
        if self._type is not None:
            raise ConnectorError(f"{self!r} has type=, which is for records: leave it out for columns")
        source = copy(self)
        source._in_columns = True
        # Kept, as the steps that follow are made for these columns, and the table may get others.
        source._wanted_in_columns = wanted = source._wanted(self._open())
        return source, wanted.schema

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that leaves out columns, files and row groups."""
        wanted = self._wanted_in_columns
        if wanted is None:
            return None
        import pyarrow

        # One column is read, if none is needed, for the number of the rows.
        names = [name for name in wanted.schema.names if columns is None or name in columns]
        names = names or wanted.schema.names[:1]
        looked_at = {one.column for each in self._filters or () for one in each}
        schema = pyarrow.schema([wanted.schema.field(name) for name in names])
        needed = pyarrow.schema([one for one in wanted.needed if one.name in looked_at.union(names)])
        skipped = None if conditions is None else tuple(tuple(Condition(*c) for c in each) for each in conditions)
        source = copy(self)
        source._wanted_in_columns = replace(wanted, schema=schema, needed=needed, skipped=skipped)
        return source, schema

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Create the enumerator, which lists the files when it is started."""
        return DeltaEnumerator(context, self, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Create a reader of files."""
        from sluiceway_lakehouse._reading import LakeReader

        wanted = self._wanted_in_columns or self._wanted(self._open())
        return LakeReader(context, wanted, self._place.files.open, str(self._place), cleaning="VACUUM")

    def _open(self) -> Any:
        """Return the table at its version. Raises MisfitError: it does not exist or cannot be read."""
        table = self._place.find(self._version)
        if table is None:
            raise MisfitError(f"{self._place} does not exist")
        check_readable(table, self._place)
        return table

    def _wanted(self, table: Any) -> Any:
        import pyarrow

        from sluiceway_lakehouse._reading import Wanted

        schema = schema_of_table(table)
        names = schema.names if self._columns is None else self._columns
        for name in names:
            if name not in schema.names:
                raise MisfitError(
                    f"{self._place} has no column {name!r} for columns=; it has "
                    f"{', '.join(map(repr, schema.names))}"
                )
        looked_at = {one.column for each in self._filters or () for one in each}
        if self._filters is not None:
            RowFilter(self._filters, schema, str(self._place))
        return Wanted(
            pyarrow.schema([schema.field(name) for name in names]),
            pyarrow.schema([one for one in schema if one.name in looked_at.union(names)]),
            self._filters,
            self._type,
            self._in_columns,
            schema,
        )


@dataclass(frozen=True, slots=True)
class DeltaProgress:
    """State of the enumerator in checkpoints.

    Attributes:
        pending: splits that nobody has.
        version: version of the table up to which files were found.
        table_id: id of the table.
    """

    pending: list[Any] = field(default_factory=list)
    version: int = -1
    table_id: str = ""


class DeltaEnumerator(DiscoveringEnumerator[DeltaProgress | MisfitError]):
    """Enumerator of the files of a version, and of those that later ones have added.

    Args:
        context: given by the runtime.
        source: the source.
        restored: what an earlier enumerator kept.
    """

    def __init__(self, context: EnumeratorContext, source: DeltaSource, restored: DeltaProgress | None) -> None:
        super().__init__(
            context,
            source._watch_ms,
            create_thread=partial(ThreadPoolExecutor, 1, "sluiceway-delta-watch"),
            log=_log,
            sought="versions",
        )
        self._source = source
        self._place = source._place
        self._pending = list(restored.pending) if restored is not None else []
        self._version = -1 if restored is None else restored.version
        self._table_id = "" if restored is None else restored.table_id
        self._waiting: dict[int, None] = {}  # readers that have got nothing yet, in that order

    def start(self) -> None:
        """Find the files of the version, unless they were found before the restart."""
        if self._version < 0 or self._interval_ms is not None:
            super().start()

    def handle_split_request(self, reader: int) -> None:
        """Give the next split, or remember the reader until there is one."""
        self._waiting[reader] = None
        self._hand_out()

    def add_splits_back(self, splits: Any, reader: int) -> None:
        """Put the splits at the head of the list."""
        self._pending[:0] = splits
        self._waiting.pop(reader, None)  # its next attempt asks anew
        self._hand_out()

    def snapshot(self) -> DeltaProgress:
        """Return the splits that nobody has, and the version up to which there are others."""
        return DeltaProgress(list(self._pending), self._version, self._table_id)

    # ---- inside ---------------------------------------------------------------------------------------------

    def _search(self) -> DeltaProgress | MisfitError:
        try:
            return self._found()
        except MisfitError as error:
            return error  # other errors of later searches may pass

    def _found(self) -> DeltaProgress:
        from sluiceway_lakehouse._delta_log import appended, files_of
        from sluiceway_lakehouse._reading import values_of

        table = self._source._open() if self._version < 0 else self._latest()
        schema, table_id = schema_of_table(table), table.metadata().id
        if self._version < 0:
            version, splits = table.version(), files_of(table, self._place)
        else:
            version, splits = max(self._version, table.version()), []
            if table_id != self._table_id:
                raise MisfitError(f"{self._place} was replaced by another table since the checkpoint")
            for number in range(self._version + 1, version + 1):
                splits += appended(self._place, number, schema, table_id)
            if splits:
                self._source._wanted(table)  # the columns are still there
        filters = self._source._filters
        if filters is not None:
            kept = RowFilter(filters, schema, str(self._place))
            splits = [one for one in splits if kept.may_hold(values_of(one.partition, schema))]
        return DeltaProgress(splits, version, table_id)

    def _latest(self) -> Any:
        table = self._place.find()
        if table is None:
            raise ConnectorError(f"{self._place} is not there")
        check_readable(table, self._place)
        return table

    def _take(self, found: DeltaProgress | MisfitError) -> None:
        if isinstance(found, MisfitError):
            raise found
        self._pending += found.pending
        self._version, self._table_id = found.version, found.table_id

    def _hand_out(self) -> None:
        while self._waiting:
            if not self._pending and self._interval_ms is not None:
                return
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            if self._pending:
                self._context.assign(reader, [self._pending.pop(0)])
            else:
                self._context.no_more_splits(reader)
