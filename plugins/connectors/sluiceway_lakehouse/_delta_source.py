"""Source that reads a table of Delta Lake."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sluiceway.columns.filters import Filters, RowFilter
from sluiceway.connector import (
    Enumerator,
    EnumeratorContext,
    Reader,
    ReaderContext,
)
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._delta_table import (
    DeltaPlace,
    check_readable,
    need_deltalake,
    schema_of_table,
)
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._lake_source import LakeEnumerator, LakeProgress, LakeSource

__all__ = ["DeltaSource"]

_log: Final = logging.getLogger("sluiceway_lakehouse")


class DeltaSource(LakeSource):
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
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise ConfigurationError(f"version={version!r} must be a whole number, at least 0, or None")
        super().__init__(DeltaPlace.of(table, storage_options), columns, filters, watch, type)
        self._version = version

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Create the enumerator, which lists the files when it is started."""
        return DeltaEnumerator(context, self, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Create a reader of files."""
        from sluiceway_lakehouse._reading import LakeReader

        wanted = self._wanted_in_columns or self._wanted(self._open())
        return LakeReader(context, wanted, self._place.files.open, str(self._place), cleaning="VACUUM")

    @override
    def _open(self) -> Any:
        table = self._place.find(self._version)
        if table is None:
            raise MisfitError(f"{self._place} does not exist")
        check_readable(table, self._place)
        return table

    @override
    def _arrow_schema(self, table: Any) -> Any:
        return schema_of_table(table)


@dataclass(frozen=True, slots=True)
class DeltaProgress(LakeProgress):
    """State of the enumerator in checkpoints.

    Attributes:
        version: version of the table up to which files were found; -1: none.
        table_id: id of the table.
    """

    version: int = -1
    table_id: str = ""


class DeltaEnumerator(LakeEnumerator[DeltaProgress]):
    """Enumerator of the files of a version, and of those that later ones have added.

    Args:
        context: given by the runtime.
        source: the source.
        restored: what an earlier enumerator kept.
    """

    def __init__(self, context: EnumeratorContext, source: DeltaSource, restored: DeltaProgress | None) -> None:
        super().__init__(
            context,
            source,
            DeltaProgress() if restored is None else restored,
            thread="sluiceway-delta-watch",
            log=_log,
            sought="versions",
        )
        self._source = source
        self._place = source._place

    @override
    def _has_begun(self) -> bool:
        return self._progress.version >= 0

    @override
    def _found(self) -> DeltaProgress:
        from sluiceway_lakehouse._delta_log import appended, files_of
        from sluiceway_lakehouse._reading import values_of

        before = self._progress
        table = self._latest() if self._has_begun() else self._source._open()
        schema, table_id = schema_of_table(table), table.metadata().id
        if not self._has_begun():
            version, splits = table.version(), files_of(table, self._place)
        else:
            version, splits = max(before.version, table.version()), []
            if table_id != before.table_id:
                raise MisfitError(f"{self._place} was replaced by another table since the checkpoint")
            for number in range(before.version + 1, version + 1):
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
