"""Source that reads a table of Iceberg."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sluiceway.columns.filters import Filters, RowFilter, certain_conditions
from sluiceway.connector import (
    Enumerator,
    EnumeratorContext,
    Reader,
    ReaderContext,
)
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._iceberg_table import (
    IcebergFiles,
    IcebergPlace,
    arrow_schema,
    check_types,
    need_pyiceberg,
)
from sluiceway_lakehouse._lake_source import LakeEnumerator, LakeProgress, LakeSource

__all__ = ["IcebergSource"]

_log: Final = logging.getLogger("sluiceway_lakehouse")

_REFUSED: Final = frozenset({"geography", "geometry", "unknown", "variant"})
_RELOAD_MS: Final = 300_000
"""Age at which a reader loads the table again: a catalog may give credentials that expire."""


class IcebergSource(LakeSource):
    """Source of the rows of a table of Iceberg, with pyiceberg; needs the extra ``iceberg``.

    ``Pipeline.table()`` reads them in columns, ``source()`` as records. It reads one snapshot of the table, and
    ends. With ``watch`` it does not end: at this interval it looks for new snapshots, and reads the files that
    they have added, in the order of snapshots. A snapshot that only rewrites files, such as a compaction, is
    passed over; one that deletes or updates rows fails the job.

    Readers take a file at a time. Positions can be snapshotted and restored as long as the files stay: a file or a
    snapshot that has expired before it was read fails the job. Columns are found by the ids of their
    fields, so that files from before a column was renamed are read, too. Columns that were added to the table
    after a file was written are null in it; those that are added while the job runs are not read. Delete files
    are refused.

    Files are read in the task's thread: a slow object store holds up everything else in its worker.

    Args:
        table: namespaces and name, joined by dots, such as ``shop.sales``.
        catalog: name of the catalog; None: the default one of pyiceberg's configuration.
        properties: of the catalog, as ``pyiceberg.catalog.load_catalog`` takes them, next to those of its
            configuration: ``{"type": "rest", "uri": ...}``. They are not shown in plans.
        columns: which columns to read; None: all.
        filters: which rows to read, as for ``FilesSource.parquet``: a list of ``(column, operator, value)`` that
            must all hold, or a list of such lists, one of which must. Files without such rows by their partition
            or statistics, and row groups, are not read.
        snapshot_id: snapshot of the table to read, and after which ``watch`` begins; None: the current one when
            the job starts.
        watch: time between looks for new snapshots: a timedelta, ms, or a text such as ``10s``; None: no looks.
        type: class of the records, such as a dataclass; None: dicts.

    Raises:
        ConfigurationError: one of them cannot be used.
        MissingExtraError: pyiceberg is not installed.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, str] | None = None,
        columns: Iterable[str] | None = None,
        filters: Filters | None = None,
        snapshot_id: int | None = None,
        watch: timedelta | int | str | None = None,
        type: Any = None,  # noqa: A002 - as FilesSource has it
    ) -> None:
        need_pyiceberg()
        if snapshot_id is not None and (isinstance(snapshot_id, bool) or not isinstance(snapshot_id, int)):
            raise ConfigurationError(f"snapshot_id={snapshot_id!r} must be the id of a snapshot, or None")
        super().__init__(IcebergPlace.of(table, catalog, properties), columns, filters, watch, type)
        self._snapshot_id = snapshot_id
        self._fields: Any = None  # columns of the table with their ids

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Create the enumerator, which lists the files when it is started."""
        return IcebergEnumerator(context, self, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        """Create a reader of files."""
        from sluiceway_lakehouse._iceberg_layout import layout_by_id
        from sluiceway_lakehouse._reading import LakeReader

        table = self._open()
        fields = arrow_schema(self._schema(table)) if self._fields is None else self._fields
        return LakeReader(
            context,
            self._wanted_in_columns or self._wanted(table),
            _Opener(self._place, table, context),
            str(self._place),
            cleaning="the expiration of snapshots",
            layout_of=partial(
                layout_by_id, fields=fields, name_mapping=table.name_mapping(), where=str(self._place)
            ),
        )

    @override
    def _open(self) -> Any:
        table = self._place.load()
        if self._snapshot_id is not None and table.metadata.snapshot_by_id(self._snapshot_id) is None:
            raise MisfitError(
                f"{self._place} has no snapshot {self._snapshot_id} for snapshot_id=; has it expired? Its "
                f"current one is {table.metadata.current_snapshot_id}"
            )
        self._check(table)
        return table

    def _schema(self, table: Any) -> Any:
        """Return the ``pyiceberg.schema.Schema`` to read with: a snapshot that is read by itself has its own."""
        if self._snapshot_id is None or self._watch_ms is not None:
            return table.schema()
        number = table.metadata.snapshot_by_id(self._snapshot_id).schema_id
        return table.schema() if number is None else table.schemas()[number]

    def _check(self, table: Any) -> None:
        """Raise MisfitError if the files of a table do not have its rows as they are."""
        if self._watch_ms is not None and table.metadata.format_version < 2:
            raise MisfitError(
                f"{self._place} has format version 1, whose snapshots have no numbers, so watch= cannot tell "
                "whether one has expired. upgrade_table_version(2) of a transaction changes it"
            )
        schema = self._schema(table)
        check_types(schema, self._place, "read", _REFUSED)
        for one in schema.fields:
            if getattr(one, "initial_default", None) is not None:
                raise MisfitError(
                    f"{self._place}: column {one.name!r} has a default for rows before it, so it cannot be read"
                )

    @override
    def _arrow_schema(self, table: Any) -> Any:
        return _without_ids(arrow_schema(self._schema(table)))

    @override
    def _keep_columns(self, table: Any) -> None:
        super()._keep_columns(table)
        self._fields = arrow_schema(self._schema(table))


def _sequence(table: Any, snapshot: int | None) -> int:
    found: int = 0 if snapshot is None else table.metadata.snapshot_by_id(snapshot).sequence_number or 0
    return found


def _without_ids(schema: Any) -> Any:
    import pyarrow

    return pyarrow.schema([_field_without_id(field) for field in schema])


def _field_without_id(field: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct([_field_without_id(kind.field(at)) for at in range(kind.num_fields)])
    elif types.is_map(kind):
        kind = pa.map_(_field_without_id(kind.key_field), _field_without_id(kind.item_field))
    elif types.is_list(kind):
        kind = pa.list_(_field_without_id(kind.value_field))
    return pa.field(field.name, kind, field.nullable)


class _Opener:
    """Opener of files of a table, with credentials that are not older than some minutes."""

    def __init__(self, place: IcebergPlace, table: Any, context: ReaderContext) -> None:
        self._place = place
        self._files = IcebergFiles(table.io)
        self._clock = context.clock
        self._loaded_ms = context.clock.now_ms()

    def __call__(self, path: str) -> Any:
        now_ms = self._clock.now_ms()
        if now_ms - self._loaded_ms > _RELOAD_MS:
            self._files, self._loaded_ms = IcebergFiles(self._place.load().io), now_ms
        return self._files.open(path)


@dataclass(frozen=True, slots=True)
class IcebergProgress(LakeProgress):
    """State of the enumerator in checkpoints.

    Attributes:
        has_begun: True if the files of the first snapshot were found.
        snapshot: id of the snapshot up to which files were found; None: there was none.
        sequence: its sequence number.
        table_id: id of the table.
    """

    has_begun: bool = False
    snapshot: int | None = None
    sequence: int = 0
    table_id: str = ""


class IcebergEnumerator(LakeEnumerator[IcebergProgress]):
    """Enumerator of the files of a snapshot, and of those that later ones have added.

    Args:
        context: given by the runtime.
        source: the source.
        restored: what an earlier enumerator kept.
    """

    def __init__(
        self, context: EnumeratorContext, source: IcebergSource, restored: IcebergProgress | None
    ) -> None:
        super().__init__(
            context,
            source,
            IcebergProgress() if restored is None else restored,
            thread="sluiceway-iceberg-watch",
            log=_log,
            sought="snapshots",
        )
        self._source = source
        self._place = source._place

    @override
    def _has_begun(self) -> bool:
        return self._progress.has_begun

    @override
    def _found(self) -> IcebergProgress:
        from sluiceway_lakehouse._iceberg_log import appended, files_of, snapshots_since

        source, before = self._source, self._progress
        if not before.has_begun:
            table = source._open()
            number = source._snapshot_id or table.metadata.current_snapshot_id
            splits = files_of(table, number, self._place, self._row_filter(table))
            return IcebergProgress(splits, True, number, _sequence(table, number), str(table.metadata.table_uuid))
        with self._place.opened() as catalog:
            table = self._place.find(catalog)
        if table is None:
            raise ConnectorError(f"{self._place} is not there")
        if str(table.metadata.table_uuid) != before.table_id:
            raise MisfitError(f"{self._place} was replaced by another table since the checkpoint")
        source._check(table)
        new = snapshots_since(table, before.snapshot, before.sequence, self._place)
        splits = [split for one in new for split in appended(table, one, self._place)]
        if splits and source._fields is None:
            source._wanted(table)  # the columns are still there
        # Only partition values are compared: the manifest's statistics are not part of a split.
        splits = [split for split in splits if self._may_hold(split, table)]
        number = table.metadata.current_snapshot_id
        return IcebergProgress(splits, True, number, _sequence(table, number), before.table_id)

    def _row_filter(self, table: Any) -> Any:
        """Return what is known of the rows that count, as an expression of pyiceberg."""
        from pyiceberg.expressions import AlwaysTrue, And

        from sluiceway_lakehouse._iceberg_log import row_filter

        source, schema = self._source, self._source._schema(table)
        if schema.schema_id != table.schema().schema_id:
            return AlwaysTrue()  # pyiceberg would take the names for those of the current columns
        wanted = source._wanted_in_columns
        if wanted is not None and _without_ids(arrow_schema(schema)) != wanted.whole:
            return AlwaysTrue()  # columns were changed since the job was made
        skipped = None if wanted is None else wanted.skipped
        if skipped is not None:
            skipped = certain_conditions(skipped, wanted.whole, wanted.whole)
        return And(row_filter(source._filters, schema), row_filter(skipped, schema))

    def _may_hold(self, split: Any, table: Any) -> bool:
        """Return whether a file may have rows that ``filters`` keep, by its partition."""
        import pyarrow

        from sluiceway_lakehouse._iceberg_layout import partition_constant

        if self._source._filters is None or not split.partition:
            return True
        fields = self._source._fields
        fields = arrow_schema(table.schema()) if fields is None else fields
        values = {
            one.name: partition_constant(split.partition[number], one.type)
            for one in fields
            if (number := one.metadata[b"PARQUET:field_id"].decode()) in split.partition
        }
        row = pyarrow.RecordBatch.from_pydict(
            {name: pyarrow.array([of.as_py()], of.type) for name, of in values.items()}
        )
        return RowFilter(self._source._filters, _without_ids(fields), str(self._place)).may_hold(row)
