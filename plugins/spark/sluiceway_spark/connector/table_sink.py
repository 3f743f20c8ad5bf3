"""SparkTableSink: a sink of tables whose format has transactions, Delta and Iceberg."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError, choose
from sluiceway.util.overriding import override
from sluiceway_spark.connector.table_commits import TableCommits
from sluiceway_spark.connector.table_target import APPEND, FORMATS, MODES, TableDescription, TableTarget
from sluiceway_spark.connector.table_writer import TableWriter
from sluiceway_spark.conversion.arrow_schema import schema_of
from sluiceway_spark.session.configuration import SessionConf, need_spark

__all__ = ["SparkTableSink"]

_COLUMN: Final = re.compile(r"[^\W\d]\w*")
_TRANSFORM: Final = re.compile(r"\w+\([^()]*\)")


class SparkTableSink(Sink[Any]):
    """Sink of a Delta or Iceberg table in the catalogs of a Spark session.

    A record is a dict, a tuple, a NamedTuple, a dataclass, a msgspec.Struct, or an Arrow batch with any number of
    rows. Subtasks stage rows as Parquet files. The session appends the files of a checkpoint or micro-batch to the
    table in one transaction, which Spark writes as the table's format, properties and constraints require. So
    the program's process has to commit: engine ``spark`` in batch jobs and micro-batches, and engine ``local``
    without workers, where each subtask commits its own transaction.

    With checkpoints, and in micro-batches, output is exactly-once: each transaction has an application id and a
    version, in Delta those of ``txnAppId`` and ``txnVersion``, in Iceberg the summary of the snapshot
    (``sluiceway.app-id``, ``sluiceway.version``), by which a commit that is repeated after a failure is not done
    twice. In Iceberg, this takes that the snapshot has not expired before the job restarts.

    Jobs that write to one table at the same time must have different names.

    Args:
        name: of the table, with its catalog: ``lake.shop.orders``.
        schema: the columns: a ``pyarrow.Schema``, a ``StructType``, or a dataclass, NamedTuple, TypedDict or
            msgspec.Struct. None: those of the table, which must exist. They have to be the table's columns, by
            name and type; their order does not matter.
        format: ``delta`` or ``iceberg``, of a table that is to be created if it does not exist; for an existing
            one, it has to be its format.
        partition_by: columns by which a new table is partitioned, in Iceberg also transforms such as
            ``"days(at)"``; for an existing table it may be left out, and has to be the table's otherwise.
        mode: ``append``; ``overwrite``: the rows of the run replace those of the table; ``overwrite_partitions``:
            they replace those of each partition that has a row in the run. The two that replace commit once, at
            the end of the input, and are refused with checkpoints.
        add_columns: True: columns of ``schema`` that the table lacks are added to it, as the last ones and
            nullable, when the job begins. False: the job is refused. Other differences are refused in any case.
        staging: directory or URL for the staged files, which executors and the driver must see; None:
            ``_sluiceway`` in the location of the table.
        master: of a session that has to be made.
        remote: URL of a Spark Connect server, instead.
        conf: settings of a session that has to be made, ``spark.*``, such as ``spark.jars.packages``.
        storage_options: passed to fsspec where staged files are behind a URL.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: PySpark is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        schema: Any = None,
        format: str | None = None,  # noqa: A002 - Spark's word
        partition_by: str | Sequence[str] = (),
        mode: str = APPEND,
        add_columns: bool = False,
        staging: str | None = None,
        master: str | None = None,
        remote: str | None = None,
        conf: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        need_spark()
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"SparkTableSink takes the name of a table, not {name!r:.100}")
        where = f"SparkTableSink to {name}"
        if mode not in MODES:
            raise choose("mode", mode, MODES)
        if format is not None and format not in FORMATS:
            raise choose("format of a table with transactions", format, FORMATS)
        if add_columns and schema is None:
            raise ConfigurationError(f"{where}: add_columns=True adds columns of schema=, which is not given")
        parts = tuple(partition_by) if isinstance(partition_by, (list, tuple)) else (partition_by,)
        found = None if schema is None else schema_of(schema, where)
        _check_parts(parts, found, format, where)
        self._description = TableDescription(
            name,
            SessionConf.of(master, remote, conf),
            found,
            format,
            parts,
            mode,
            bool(add_columns),
            staging,
            dict(storage_options or {}),
        )
        self._target: TableTarget | None = None
        self._commits: TableCommits | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_description": self._description, "_target": self._target, "_commits": None}

    def __repr__(self) -> str:
        return f"<{self._description}>"

    @property
    def name(self) -> str:
        """Name of the table."""
        return f"spark table {self._description.name}"

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE

    @property
    def needs_program(self) -> bool:
        """True: the session commits."""
        return True

    @property
    def commits_once(self) -> bool:
        """True for the modes that replace rows."""
        return self._description.mode != APPEND

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        target = self._target
        if target is None or not (context.is_restored or target.is_shipped):
            # In one process each run looks anew, as it may be one of several with the same object.
            target = self.look_up()
        if self._commits is None:
            self._commits = TableCommits(self._description)
        self._commits.know(target.run)  # in the driver, of what its tasks stage
        return TableWriter(target, context, self._commits)

    def look_up(self) -> TableTarget:
        """Look up the table, or create it, for a run that begins; its subtasks share an id of transactions.

        The engine ``spark`` calls this before it ships the sink to tasks, which have no session.

        Raises:
            ConnectorError: the table cannot be written to.
            ConfigurationError: it is not as described.
        """
        self._target = self._description.resolve(run=uuid.uuid4().hex[:12])
        return self._target


def _check_parts(parts: Sequence[Any], schema: Any, form: str | None, where: str) -> None:
    for part in parts:
        if not isinstance(part, str) or not (_COLUMN.fullmatch(part) or _TRANSFORM.fullmatch(part)):
            raise ConfigurationError(
                f"{where}: partition_by has {part!r:.100}, and takes names of columns, or transforms of Iceberg "
                "such as 'days(at)'"
            )
        if not _COLUMN.fullmatch(part):
            if form == "delta":
                raise ConfigurationError(
                    f"{where}: partition_by has {part!r}, and tables of Delta are partitioned by columns alone"
                )
        elif schema is not None and part not in schema.names:
            raise ConfigurationError(
                f"{where}: partition_by has {part!r}, and the columns are {', '.join(schema.names)}"
            )
