"""Writer of IcebergSink: Parquet files, which a commit adds to a snapshot of the table."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import pyarrow as pa

from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.errors import ConnectorError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._agreement import Agreement, TableRows
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._iceberg_commits import Committable, IcebergCommits, WrittenDataFile
from sluiceway_lakehouse._iceberg_partitions import Partitioning, transform_of
from sluiceway_lakehouse._iceberg_table import IcebergFiles, IcebergTarget, arrow_schema, check_types
from sluiceway_lakehouse._parquet_files import ParquetFiles
from sluiceway_lakehouse._schemas import new_columns

__all__ = ["IcebergAgreement", "IcebergWriter"]

_log: Final = logging.getLogger("sluiceway_lakehouse")

_TRIES: Final = 10
"""Attempts at a change of the table's columns, while others change the table."""
_REFUSED: Final = frozenset({"geography", "geometry", "unknown", "uuid", "variant"})
_CODECS: Final = {
    "uncompressed": "none",
    "gzip": "gzip",
    "snappy": "snappy",
    "zstd": "zstd",
    "lz4": "lz4",
    "brotli": "brotli",
}
_FILE_SIZE: Final = 512 * 1024 * 1024


class IcebergAgreement(Agreement):
    """Agreement of rows with a table of Iceberg.

    Args:
        target: settings of the sink.
    """

    has_times = True

    def __init__(self, target: IcebergTarget) -> None:
        super().__init__(str(target.place), target.rows, target.schema)
        self._target = target

    @override
    def check(self, table: Any) -> None:
        target = self._target
        if table is None:
            schema = self.new_schema()
            for column, _ in target.partition_by or ():
                if column not in schema.names:
                    raise MisfitError(
                        f"{target.place}: partition_by= has {column!r}, which is no column; the columns are "
                        f"{', '.join(schema.names)}"
                    )
            self.fit(schema)
            return
        check_writable(table, target)
        schema = arrow_schema(table.schema())
        if target.schema is not None and target.merge_schema:
            schema = self.merged(schema)
        self.fit(schema)


class IcebergWriter(CommittingSinkWriter[Any]):
    """Writer of the files of one subtask.

    Each checkpoint of each attempt has a mark of its own in the table: a new run of a job never takes its commits
    for those of an earlier one.

    Args:
        target: settings of the sink.
        context: given by the runtime.
    """

    def __init__(self, target: IcebergTarget, context: WriterContext) -> None:
        self._target = target
        self._place = target.place
        self._agreement = IcebergAgreement(target)
        self._commits = IcebergCommits(target.place, context.job_name, context.parallelism)
        # Marks are in one property, separated by commas. The end is kept, which no other attempt has.
        self._attempt = f"{context.uid}/{context.subtask}/{uuid.uuid4().hex}".replace(",", "_")[-200:]
        self._count = 0
        self._resources = ExitStack()
        self._catalog: Any = None
        self._table: Any = None
        self._partitioning: Partitioning | None = None
        self._rows: TableRows | None = None
        self._store: IcebergFiles | None = None
        self._files: ParquetFiles | None = None

    def open(self) -> None:
        self._catalog = self._resources.enter_context(self._place.opened())
        table = self._place.find(self._catalog)
        self._agreement.check(table)
        if table is None:
            table = self._create()
            self._agreement.check(table)
        self._table = table = self._with_new_columns(table) if self._target.merge_schema else table
        schema = arrow_schema(table.schema())
        self._partitioning = Partitioning(table.schema(), table.spec(), str(self._place))
        self._rows = TableRows(self._agreement.fit(schema), str(self._place))
        self._store = IcebergFiles(table.io)
        properties = table.metadata.properties
        self._files = ParquetFiles(
            self._store,
            schema,
            self._partitioning.names,
            self._path,
            row_group_size=self._target.row_group_size,
            file_size=self._target.file_size or int(properties.get("write.target-file-size-bytes", _FILE_SIZE)),
            max_open=self._target.max_open,
            options=_options(properties, str(self._place)),
        )

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        assert self._rows is not None
        assert self._files is not None
        assert self._partitioning is not None
        if not values:
            return
        data = self._rows.convert(values)
        with self._place.failing_with("write to"):
            self._files.write(self._partitioning.with_values(data))

    def flush(self) -> None:
        """Do nothing: files are completed at a checkpoint."""

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        assert self._files is not None
        assert self._store is not None
        with self._place.failing_with("write to"):
            complete = self._files.take()
        if not complete:
            return []
        # None of the snapshots that are there now is the commit of these files: later ones alone can be.
        now = self._place.find(self._catalog)
        if now is None:
            raise MisfitError(f"{self._place} is not there any more; rows that were written cannot be committed")
        self._store.io = now.io  # with new credentials, if the catalog gives these
        self._count += 1
        files: list[WrittenDataFile] = [
            (one.path, one.size, tuple(one.partition.values()), self._statistics(one.metadata)) for one in complete
        ]
        committable: Committable = (
            f"{self._attempt}:{self._count}",
            str(self._table.metadata.table_uuid),
            self._table.metadata.default_spec_id,
            now.metadata.last_sequence_number,
            tuple(files),
        )
        return [committable]

    def commit(self, committables: Sequence[Committable]) -> None:
        self._commits.commit(self._catalog, committables, again=False)

    def recover(self, committables: Sequence[Committable]) -> None:
        self._commits.commit(self._catalog, committables, again=True)

    def close(self) -> None:
        files, self._files = self._files, None
        try:
            if files is not None:
                files.abandon()
        finally:
            self._resources.close()

    # ---- the table ------------------------------------------------------------------------------------------

    def _create(self) -> Any:
        """Create the table, or find the one that another subtask has created."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        target, catalog = self._target, self._catalog
        with self._place.failing_with("create"):
            with suppress(NamespaceAlreadyExistsError):  # created meanwhile
                catalog.create_namespace_if_not_exists(self._place.table.rpartition(".")[0])
            try:
                creation = catalog.create_table_transaction(
                    self._place.table, self._agreement.new_schema(), properties=dict(target.table_properties)
                )
                with creation, creation.update_spec() as spec:
                    for column, transform in target.partition_by or ():
                        spec.add_field(column, transform)
            except TableAlreadyExistsError:
                pass
            except Exception:
                if self._place.find(catalog) is None:
                    raise
        table = self._place.find(catalog)
        if table is None:
            raise ConnectorError(f"{self._place} is not there after it was created: was it dropped?")
        return table

    def _with_new_columns(self, table: Any) -> Any:
        """Add columns of the rows that the table does not have; return the table."""
        for left in reversed(range(_TRIES)):
            schema = arrow_schema(table.schema())
            if self._target.schema is None or not (new := new_columns(self._target.schema, schema)):
                break
            fields = [field for field in self._agreement.merged(schema) if field.name in new]
            with self._place.failing_with("add columns to"):
                try:
                    with table.update_schema() as update:
                        update.union_by_name(pa.schema(fields))
                except Exception:
                    if not left:
                        raise
                else:
                    _log.info("%s: added the columns %s", self._place, ", ".join(new))
            table = self._place.find(self._catalog)
            if table is None:
                raise MisfitError(f"{self._place} is not there any more")
        return table

    def _path(self, partition: Mapping[str, Any], name: str) -> str:
        assert self._partitioning is not None
        directory = self._partitioning.directory(partition)
        path: str = self._table.location_provider().new_data_location(name, directory)
        return path

    def _statistics(self, metadata: Any) -> dict[str, Any]:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        schema = self._table.schema()
        found: dict[str, Any] = data_file_statistics_from_parquet_metadata(
            metadata,
            compute_statistics_plan(schema, self._table.metadata.properties),
            parquet_path_to_id_mapping(schema),
        ).to_serialized_dict()
        return found


def check_writable(table: Any, target: IcebergTarget) -> None:
    """Raise MisfitError if files cannot be appended to a table without further work."""
    place, metadata = target.place, table.metadata
    check_types(table.schema(), place, "written to", _REFUSED)
    if metadata.format_version != 2:
        raise MisfitError(
            f"{place} has format version {metadata.format_version}; version 2 alone can be written to"
            + (". upgrade_table_version(2) of a transaction changes it" if metadata.format_version < 2 else "")
        )
    kind = metadata.properties.get("write.format.default", "parquet").lower()
    if kind != "parquet":
        raise MisfitError(f"{place} has write.format.default={kind}; Parquet alone is written")
    _options(metadata.properties, str(place))
    Partitioning(table.schema(), table.spec(), str(place))
    if target.partition_by is not None:
        there = [
            (table.schema().find_column_name(one.source_id), transform_of(one)) for one in table.spec().fields
        ]
        if [tuple(one) for one in target.partition_by] != there:
            raise MisfitError(
                f"{place} is partitioned by {_shown(there) or 'nothing'}; partition_by= says "
                f"{_shown(target.partition_by) or 'nothing'}"
            )


def _shown(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(
        column if transform == "identity" else f"{transform} of {column}" for column, transform in fields
    )


def _options(properties: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the options of Parquet files that a table asks for. Raises MisfitError."""
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    level = properties.get("write.parquet.compression-level")
    if codec not in _CODECS:
        raise MisfitError(
            f"{where} has write.parquet.compression-codec={codec}, which is not one of {', '.join(_CODECS)}"
        )
    options: dict[str, Any] = {"compression": _CODECS[codec], "store_decimal_as_integer": True}
    if level is not None and level.lstrip("-").isdecimal() and codec in ("zstd", "gzip", "brotli"):
        options["compression_level"] = int(level)
    return options
