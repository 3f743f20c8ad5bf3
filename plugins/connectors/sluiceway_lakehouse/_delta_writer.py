"""Writer of DeltaSink: Parquet files, which a commit adds to the log of the table."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from sluiceway.columns.schemas import shown
from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.errors import ConnectorError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._agreement import Agreement, TableRows
from sluiceway_lakehouse._delta_table import DeltaTarget, check_writable, schema_of_table
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._parquet_files import ParquetFiles
from sluiceway_lakehouse._schemas import new_columns, plain
from sluiceway_lakehouse._statistics import delta_statistics

__all__ = ["DeltaAgreement", "DeltaWriter"]

_log: Final = logging.getLogger("sluiceway_lakehouse")

_TRIES: Final = 10
"""Attempts at a commit, or at a change of the table's columns, while others change the table."""
_INDEXED: Final = 32
"""Columns with statistics, unless the table says otherwise."""
_KINDS: Final = "text, integers, booleans or dates"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME: Final = 240

Added: TypeAlias = tuple[str, int, dict[str, str | None], int, str]
"""Path, size in bytes, partition values, time of modification in ms, statistics."""
Committable: TypeAlias = tuple[str, int, str, tuple[Added, ...]]
"""Application id, version, id of the table, files."""


class DeltaAgreement(Agreement):
    """Agreement of rows with a table of Delta Lake.

    Args:
        target: settings of the sink.
    """

    has_times = False

    def __init__(self, target: DeltaTarget) -> None:
        super().__init__(str(target.place), target.rows, target.schema)
        self._target = target

    @override
    def check(self, table: Any) -> None:
        target = self._target
        if table is None:
            schema = self.new_schema()
            _check_partitions(schema, target.partition_by or (), str(target.place))
            self.fit(schema)
            return
        check_writable(table, target.place)
        schema = schema_of_table(table)
        there = tuple(table.metadata().partition_columns)
        if target.partition_by is not None and there != target.partition_by:
            raise MisfitError(
                f"{target.place} is partitioned by {', '.join(there) or 'nothing'}; partition_by= says "
                f"{', '.join(target.partition_by) or 'nothing'}"
            )
        _check_partitions(schema, there, str(target.place))
        if target.schema is not None and target.merge_schema:
            schema = self.merged(schema)
        self.fit(schema)


class DeltaWriter(CommittingSinkWriter[Any]):
    """Writer of the files of one subtask.

    Each attempt is an application of its own to the table, with versions of its own: it need not know how far
    others have come, and a new run of a job never takes its commits for those of an earlier one.

    Args:
        target: settings of the sink.
        context: given by the runtime.
    """

    def __init__(self, target: DeltaTarget, context: WriterContext) -> None:
        self._target = target
        self._place = target.place
        self._context = context
        self._agreement = DeltaAgreement(target)
        step = f"sluiceway/{context.job_name}/{context.uid}"[:200]
        self._application = f"{step}/{context.subtask}/{uuid.uuid4().hex}"
        self._version = 0
        self._table: Any = None
        self._partition_by: tuple[str, ...] = ()
        self._rows: TableRows | None = None
        self._files: ParquetFiles | None = None

    def open(self) -> None:
        table = self._place.find()
        self._agreement.check(table)
        if table is None:
            table = self._create()
            self._agreement.check(table)
        self._table = self._with_new_columns(table) if self._target.merge_schema else table
        schema = schema_of_table(self._table)
        self._partition_by = tuple(self._table.metadata().partition_columns)
        self._rows = TableRows(self._agreement.fit(schema), str(self._place))
        self._files = ParquetFiles(
            self._place.files,
            schema,
            self._partition_by,
            partial(_path, where=str(self._place)),
            row_group_size=self._target.row_group_size,
            file_size=self._target.file_size,
            max_open=self._target.max_open,
            options={"compression": self._target.codec},
        )

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        assert self._rows is not None
        assert self._files is not None
        if not values:
            return
        data = self._rows.convert(values)
        with self._place.failing_with("write to"):
            self._files.write(data)

    def flush(self) -> None:
        """Do nothing: files are completed at a checkpoint."""

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        assert self._files is not None
        with self._place.failing_with("write to"):
            complete = self._files.take()
        if not complete:
            return []
        self._version += 1
        now_ms = self._context.clock.now_ms()
        indexed = self._indexed()
        added: list[Added] = [
            (
                file.path,
                file.size,
                {
                    name: None if of is None else _text(name, of, str(self._place))
                    for name, of in file.partition.items()
                },
                now_ms,
                delta_statistics(file, indexed),
            )
            for file in complete
        ]
        return [(self._application, self._version, self._table.metadata().id, tuple(added))]

    def commit(self, committables: Sequence[Committable]) -> None:
        self._commit(committables, again=False)

    def recover(self, committables: Sequence[Committable]) -> None:
        self._commit(committables, again=True)

    def close(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.abandon()

    # ---- the table ------------------------------------------------------------------------------------------

    def _create(self) -> Any:
        """Create the table, or find the one that another subtask has created."""
        from deltalake import DeltaTable, Schema

        target = self._target
        schema = self._agreement.new_schema()
        with self._place.failing_with("create"):
            try:
                DeltaTable.create(
                    self._place.uri,
                    Schema.from_arrow(schema),
                    mode="ignore",
                    partition_by=list(target.partition_by or ()) or None,
                    configuration=dict(target.configuration) or None,
                    storage_options=dict(self._place.options),
                )
            except Exception:
                found = self._place.find()
                if found is None:
                    raise
                return found
        return self._place.find()

    def _with_new_columns(self, table: Any) -> Any:
        """Add columns of the rows that the table does not have; return the table."""
        from deltalake import Schema

        for left in reversed(range(_TRIES)):
            schema = schema_of_table(table)
            if self._target.schema is None or not (new := new_columns(self._target.schema, schema)):
                break
            merged = Schema.from_arrow(self._agreement.merged(schema))
            with self._place.failing_with("add columns to"):
                try:
                    table.alter.add_columns([field for field in merged.fields if field.name in new])
                except Exception:
                    if not left:
                        raise
                else:
                    _log.info("%s: added the columns %s", self._place, ", ".join(new))
            table = self._place.find()
        return table

    def _indexed(self) -> int:
        value = self._table.metadata().configuration.get("delta.dataSkippingNumIndexedCols", "")
        # All columns.
        if value == "-1":
            return 1_000_000
        return int(value) if value.isdecimal() else _INDEXED

    def _commit(self, committables: Sequence[Committable], *, again: bool) -> None:
        """Add files to the table, unless that was done already: all of them in one version.

        Args:
            committables: what prepare_commit has returned.
            again: whether it may have been done already.
        """
        if not committables:
            return
        for left in reversed(range(_TRIES)):
            table = self._place.find()
            if table is None:
                raise MisfitError(
                    f"{self._place} is not there any more; rows that were written cannot be committed"
                )
            # Looked up in the version that the commit is made on: delta-rs refuses it if another attempt has
            # committed since.
            pending = [one for one in committables if (table.transaction_version(one[0]) or 0) < one[1]]
            if not pending:
                return
            self._check_unchanged(table, pending, again=again)
            try:
                self._add(table, pending)
            except Exception as error:
                # Another commit came first: perhaps this one, of an attempt that is thought to be dead.
                if left and _is_conflict(error):
                    continue
                raise ConnectorError(f"cannot commit to {self._place}: {str(error).strip()}") from error
            return

    def _check_unchanged(self, table: Any, pending: Sequence[Committable], *, again: bool) -> None:
        """Raise MisfitError if the table does not take files that were written for it."""
        for _, _, table_id, _ in pending:
            if table_id != table.metadata().id:
                raise MisfitError(
                    f"{self._place} was replaced by another table since rows were written for it. To write to "
                    "the new one, start the job without the checkpoint, or give the sink another uid"
                )
        for field in self._rows.table if self._rows is not None else ():
            now = schema_of_table(table)
            if field.name not in now.names or now.field(field.name).type != field.type:
                raise MisfitError(
                    f"{self._place}: the column {field.name!r} was changed while the job was running; its "
                    f"columns are now {shown(now)}"
                )
        if again:
            paths = [path for _, _, _, added in pending for path, *_ in added]
            with self._place.failing_with("commit to"):
                missing = self._place.files.missing(paths)
            if missing:
                raise MisfitError(
                    f"cannot commit to {self._place}: {missing[0]} is not there any more. Was it removed by "
                    "VACUUM, because the checkpoint is older than its retention?"
                )

    def _add(self, table: Any, pending: Sequence[Committable]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        versions: dict[str, int] = {}
        for application, version, _, _ in pending:
            # The last version of an application covers those before it.
            versions[application] = max(version, versions.get(application, 0))
        now_ms = self._context.clock.now_ms()
        table.create_write_transaction(
            [
                AddAction(path, size, partition, modified, True, statistics)
                for _, _, _, added in pending
                for path, size, partition, modified, statistics in added
            ],
            "append",
            table.schema(),
            list(table.metadata().partition_columns),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*pair, now_ms) for pair in versions.items()],
                custom_metadata={"sluiceway.job": self._context.job_name},
            ),
        )


def _is_conflict(error: Exception) -> bool:
    from deltalake.exceptions import CommitFailedError

    return isinstance(error, CommitFailedError)


def _check_partitions(schema: pa.Schema, names: Sequence[str], where: str) -> None:
    for name in names:
        if name not in schema.names:
            raise MisfitError(
                f"{where}: partition_by={name!r} is no column; the columns are {', '.join(schema.names)}"
            )
        kind = plain(schema.field(name).type)
        if not (kind in (pa.string(), pa.bool_(), pa.date32()) or pa.types.is_integer(kind)):
            raise MisfitError(f"{where}: partition column {name!r} has {kind}; it must have {_KINDS}")
    if names and len(names) == len(schema.names):
        raise MisfitError(f"{where}: partition_by={list(names)} leaves no column for the files")


def _text(name: str, value: Any, where: str) -> str:
    """Return the value of a partition column as the log has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == "":
        raise MisfitError(
            f"{where}: partition column {name!r} has an empty text, which Delta Lake cannot tell from null: "
            "replace it before"
        )
    return str(value)


def _path(partition: Mapping[str, Any], name: str, where: str) -> str:
    """Return the path of a file, in a directory as Hive names it: Polars takes the partition values from there."""
    parts = []
    for column, value in partition.items():
        text = _NULL if value is None else quote(_text(column, value, where), safe="")
        parts.append(f"{quote(column, safe='')}={text}")
    # Without a directory, a text that is too long for a name can be written.
    return name if any(len(part) > _LONGEST_NAME for part in parts) else "/".join([*parts, name])
