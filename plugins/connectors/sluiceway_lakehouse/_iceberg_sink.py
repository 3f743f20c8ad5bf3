"""Sink that appends to a table of Iceberg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.connector import SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._iceberg_partitions import partition_fields
from sluiceway_lakehouse._iceberg_table import IcebergPlace, IcebergTarget, need_pyiceberg
from sluiceway_lakehouse._lake_sink import LakeSink, check_settings, schema_with

__all__ = ["IcebergSink"]

_ROW_GROUP_SIZE: Final = 100_000
_MAX_OPEN: Final = 100


class IcebergSink(LakeSink[IcebergTarget]):
    """Sink that appends rows to a table of Iceberg, with pyiceberg; needs the extra ``iceberg``.

    It takes rows in columns (:class:`~sluiceway.table.TableStream`), or records: mappings, and objects with an
    attribute for each column. With checkpoints the output is exactly-once: each subtask writes Parquet files, and
    adds them to the table when a checkpoint that knows of them is complete. The snapshot of that commit has a
    mark in its summary, ``sluiceway.commits``, so a commit that is repeated after a failure, in whatever process,
    finds it and does nothing. Snapshots that were made since a checkpoint must not expire before the job has
    continued from it: if they have, and the current snapshot does not have the files either, the job fails,
    because it cannot tell whether the rows are in the table. Each subtask that has rows makes one snapshot per
    checkpoint. Without checkpoints there is one at the end of the input.

    The table is created if it does not exist. Else the columns of the rows are compared with its own: a column may
    be of a narrower type, and one that may be null can be left out. Partitions are those of the table's spec.
    Files that a failed attempt leaves belong to no snapshot, and go when orphan files are removed.

    Files are written, and commits made, in the task's thread: a slow object store or catalog holds up everything
    else in its worker.

    Args:
        table: namespaces and name, joined by dots, such as ``shop.sales``.
        catalog: name of the catalog; None: the default one of pyiceberg's configuration.
        properties: of the catalog, as ``pyiceberg.catalog.load_catalog`` takes them, next to those of its
            configuration: ``{"type": "rest", "uri": ...}``. They are not shown in plans.
        schema: columns of the table, if it does not exist, and of records: a ``pyarrow.Schema``, or a class with a
            field per column. None: those of the table, or those of rows in columns.
        partition_by: a column, or a transform of one, ``day(at)``, ``bucket(16, user)``, or several, for a table
            that does not exist; one that exists must have the same. None: those of the table, which has none if it
            is created.
        merge_schema: add columns that the table does not have to it, as columns that may be null, when the job
            starts; otherwise they are an error.
        table_properties: of a table that is created, such as ``write.parquet.compression-codec``.
        row_group_size: rows that are kept in memory, per partition, and written together; of all partitions of a
            subtask at most two million.
        target_file_size: bytes after which a subtask begins another file, at the end of a row group. With
            checkpoints it does at each of them. None: the table's ``write.target-file-size-bytes``, or 512 MiB.
        max_open_files: files that a subtask has open at a time, of different partitions. A further one completes
            the file that was written to the longest time ago.

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
        schema: Any = None,
        partition_by: str | Sequence[str] | None = None,
        merge_schema: bool = False,
        table_properties: Mapping[str, str] | None = None,
        row_group_size: int = _ROW_GROUP_SIZE,
        target_file_size: int | None = None,
        max_open_files: int = _MAX_OPEN,
    ) -> None:
        need_pyiceberg()
        place = IcebergPlace.of(table, catalog, properties)
        sizes = {} if target_file_size is None else {"target_file_size": target_file_size}
        check_settings(merge_schema, row_group_size=row_group_size, max_open_files=max_open_files, **sizes)
        given = dict(table_properties or {})
        if not all(isinstance(one, str) for pair in given.items() for one in pair):
            raise ConfigurationError("table_properties= must have texts as names and values")
        fields = partition_fields(partition_by)
        super().__init__(
            IcebergTarget(
                place,
                schema_with(schema, [column for column, _ in fields or ()]),
                None,
                fields,
                merge_schema,
                given,
                row_group_size,
                target_file_size,
                max_open_files,
            )
        )

    @override
    def _check_table(self) -> None:
        from sluiceway_lakehouse._iceberg_writer import IcebergAgreement

        place = self._target.place
        with place.opened() as catalog:
            table = place.find(catalog)
        IcebergAgreement(self._target).check(table)

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        from sluiceway_lakehouse._iceberg_writer import IcebergWriter

        return IcebergWriter(self._target, context)
