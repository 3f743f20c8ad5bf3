"""Sink that appends to a table of Delta Lake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.connector import SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._delta_table import DeltaPlace, DeltaTarget, need_deltalake
from sluiceway_lakehouse._lake_sink import LakeSink, check_settings, schema_with

__all__ = ["DeltaSink"]

_ROW_GROUP_SIZE: Final = 100_000
_FILE_SIZE: Final = 128 * 1024 * 1024
_MAX_OPEN: Final = 100
_CODECS: Final = ("snappy", "zstd", "gzip", "lz4", "none")


class DeltaSink(LakeSink[DeltaTarget]):
    """Sink that appends rows to a table of Delta Lake, with delta-rs; needs the extra ``delta``.

    It takes rows in columns (:class:`~sluiceway.table.TableStream`), or records: mappings, and objects with an
    attribute for each column. With checkpoints the output is exactly-once: each subtask writes Parquet files, and
    adds them to the table's log when a checkpoint that knows of them is complete. That commit has an application
    transaction id of the attempt and a version, so it does nothing when it is repeated after a failure, in
    whatever process. Each subtask that has rows makes one version of the table per checkpoint. Without
    checkpoints there is one at the end of the input.

    The table is created if it does not exist. Else the columns of the rows are compared with its own: a column may
    be of a narrower type, and one that may be null can be left out. Files that a failed attempt leaves
    belong to no version, and go with the table's next ``VACUUM``.

    Files are written, and commits made, in the task's thread: a slow object store holds up everything else in its
    worker.

    Args:
        table: path or URL of the table.
        schema: columns of the table, if it does not exist, and of records: a ``pyarrow.Schema``, or a class with a
            field per column. None: those of the table, or those of rows in columns.
        partition_by: a column or several, of text, integers, booleans or dates, for a table that does not exist;
            one that exists must have the same. None: those of the table, which has none if it is created.
        merge_schema: add columns that the table does not have to it, as columns that may be null, when the job
            starts; otherwise they are an error.
        configuration: properties of a table that is created, such as ``delta.logRetentionDuration``.
        row_group_size: rows that are kept in memory, per partition, and written together; of all partitions of a
            subtask at most two million.
        target_file_size: bytes after which a subtask begins another file, at the end of a row group. With
            checkpoints it does at each of them.
        max_open_files: files that a subtask has open at a time, of different partitions. A further one completes
            the file that was written to the longest time ago.
        codec: compression inside files: ``snappy``, ``zstd``, ``gzip``, ``lz4`` or ``none``.
        storage_options: of the object store, as ``deltalake`` has them.

    Raises:
        ConfigurationError: one of them cannot be used.
        MissingExtraError: deltalake is not installed.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        schema: Any = None,
        partition_by: str | Sequence[str] | None = None,
        merge_schema: bool = False,
        configuration: Mapping[str, str] | None = None,
        row_group_size: int = _ROW_GROUP_SIZE,
        target_file_size: int = _FILE_SIZE,
        max_open_files: int = _MAX_OPEN,
        codec: str = "snappy",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        need_deltalake()
        place = DeltaPlace.of(table, storage_options)
        check_settings(
            merge_schema,
            row_group_size=row_group_size,
            target_file_size=target_file_size,
            max_open_files=max_open_files,
        )
        if codec not in _CODECS:
            raise ConfigurationError(f"codec={codec!r} must be one of {', '.join(map(repr, _CODECS))}")
        names = _names(partition_by)
        super().__init__(
            DeltaTarget(
                place,
                schema_with(schema, names or ()),
                None,
                names,
                merge_schema,
                dict(configuration or {}),
                row_group_size,
                target_file_size,
                max_open_files,
                codec,
            )
        )

    @override
    def _check_table(self) -> None:
        from sluiceway_lakehouse._delta_writer import DeltaAgreement

        DeltaAgreement(self._target).check(self._target.place.find())

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        from sluiceway_lakehouse._delta_writer import DeltaWriter

        return DeltaWriter(self._target, context)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"partition_by={given!r:.100} must be the name of a column, or several different ones"
        )
    return names
