"""Catalog tables as targets of a sink: found or created before a job begins, and refreshed after commits.

All of this is in the process that has the session: writers know a table by the directory of its files. New
partitions have to be told to the catalog, and files to who has listed them before: at each checkpoint, in a
thread of its own, of what the one before has committed, and when the job has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_spark.connector.column_file import CODECS
from sluiceway_spark.connector.sink_writer import Target
from sluiceway_spark.connector.target_directory import absolute
from sluiceway_spark.conversion.arrow_schema import schema_of
from sluiceway_spark.session.configuration import SessionConf, said

__all__ = ["Table", "checkpointed", "quoted", "sql_type", "status_changed"]

_log: Final = logging.getLogger("sluiceway_spark")


@dataclass(frozen=True)
class Table:
    """Catalog table as a target.

    Attributes:
        name: as SQL has it.
        session: what a session is made of, where there is none.
        target: what was asked for; its path is not known yet.
        form: ``parquet`` or ``orc`` where one was asked for.
        codec: where one was asked for.
    """

    name: str
    session: SessionConf
    target: Target
    form: str | None
    codec: str | None

    def resolve(self) -> Target:
        """Return the place and the schema of the table's files. A missing table is created.

        Raises:
            ConnectorError: it cannot be written to.
            ConfigurationError: it is not what was asked for.
        """
        session = self.session.session()
        found = self._described(session, create=True)
        _watch(self.name, session, found)
        return found

    def look_up(self) -> Target:
        """Return what :meth:`resolve` would, and what was asked for if the table would be created.

        Raises:
            ConnectorError: it cannot be written to.
            ConfigurationError: it is not what was asked for.
        """
        return self._described(self.session.session(), create=False)

    def _described(self, session: Any, *, create: bool) -> Target:
        try:
            if not session.catalog.tableExists(self.name):
                statement = self._creation()
                if not create:
                    return self.target
                session.sql(statement)
            rows = session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
            struct = session.table(self.name).schema
        except (ConfigurationError, ConnectorError):
            raise
        except Exception as error:
            raise ConnectorError(f"{self.target}: {said(error)}") from error
        facts = {row.col_name: row.data_type for row in rows}
        form = str(facts.get("Provider", "")).lower()
        if "Location" not in facts or facts.get("Type") == "VIEW":
            raise ConnectorError(f"{self.target}: that is a view, which has no files to write")
        if form not in CODECS:
            raise ConnectorError(
                f"{self.target}: that is a table of {form or 'an unknown kind'}. Tables of Parquet and ORC files "
                "(USING parquet) can be written, and those of Delta and Iceberg by SparkTableSink"
            )
        if "Num Buckets" in facts:
            raise ConnectorError(f"{self.target}: the table is bucketed, and only Spark can write its files")
        found = replace(
            self.target,
            path=absolute(facts["Location"]),
            schema=schema_of(struct, str(self.target)),
            form=form,
            codec=CODECS[form][0] if self.codec is None else self.codec,
            partition_by=_partitions_of([row.col_name for row in rows]),
        )
        self._compare(found)
        return found

    def _creation(self) -> str:
        if self.target.schema is None:
            raise ConfigurationError(
                f"{self.target}: there is no such table, and without schema= it cannot be made"
            )
        names = self.target.partition_by
        columns = ", ".join(f"{quoted(f.name)} {sql_type(f.type, f.name)}" for f in self.target.schema)
        parts = f" PARTITIONED BY ({', '.join(map(quoted, names))})" if names else ""
        return f"CREATE TABLE {self.name} ({columns}) USING {self.form or 'parquet'}{parts}"

    def _compare(self, found: Target) -> None:
        wanted = self.target
        if self.form is not None and self.form != found.form:
            raise ConfigurationError(f"{wanted}: format={self.form!r}, but it is a table of {found.form}")
        if found.codec not in CODECS[found.form]:
            raise ConfigurationError(f"{wanted}: codec={found.codec!r} is none of {found.form}")
        if wanted.partition_by and wanted.partition_by != found.partition_by:
            raise ConfigurationError(
                f"{wanted}: partition_by= says {', '.join(wanted.partition_by)}, but the table is partitioned by "
                f"{', '.join(found.partition_by) or 'nothing'}"
            )
        if wanted.schema is None:
            return
        ours, theirs = ({f.name: str(f.type) for f in schema} for schema in (wanted.schema, found.schema))
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                raise ConfigurationError(
                    f"{wanted}: column {name!r} is {ours.get(name, 'not there')} in schema=, but in the table "
                    f"{theirs.get(name, 'not there')}"
                )


def _partitions_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns in the partition part of a description, which ends with an empty line."""
    if "# Partition Information" not in names:
        return ()
    # Behind this heading comes that of the columns.
    after = list(names[names.index("# Partition Information") + 2 :])
    return tuple(after[: after.index("")])


def quoted(name: str) -> str:
    """Return a name as SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def sql_type(kind: Any, where: str) -> str:
    """Return Spark's SQL type for an Arrow type. Raise ConfigurationError if it has none.

    Args:
        kind: the Arrow type.
        where: name of the column.
    """
    import pyarrow as pa

    is_ = pa.types
    if is_.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type, where)}>"
    if is_.is_map(kind):
        return f"MAP<{sql_type(kind.key_type, where)}, {sql_type(kind.item_type, where)}>"
    if is_.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(f.name)}: {sql_type(f.type, where)}' for f in kind)}>"
    if is_.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.binary(): "BINARY",
        pa.date32(): "DATE",
        pa.timestamp("us"): "TIMESTAMP_NTZ",
    }
    if is_.is_timestamp(kind) and kind.tz is not None:
        return "TIMESTAMP"
    if kind not in names:
        raise ConfigurationError(f"column {where!r} is {kind}, for which a table of Spark's has no type")
    return names[kind]


# ---- telling the catalog ---------------------------------------------------------------------------------------


class _Watched:
    """Catalog tables that jobs of this process write to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: Mapping[str, tuple[Any, str]] = {}
        self._running: set[str] = set()
        self._thread: threading.Thread | None = None
        self._again = False

    def add(self, name: str, session: Any, statement: str) -> None:
        with self._lock:
            # Another dict: _tell() walks the one before without the lock.
            self._tables = {**self._tables, name: (session, statement)}

    def checkpointed(self) -> None:
        with self._lock:
            if not self._tables:
                return
            self._again = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sluiceway-spark-tables", daemon=True)
                self._thread.start()

    def status_changed(self, job_name: str, status: JobStatus) -> None:
        if not status.ended:
            self._running.add(job_name)
            return
        self._running.discard(job_name)
        with self._lock:
            self._again = False
            thread = self._thread
        if thread is not None:
            thread.join()
        self._tell()
        if not self._running:
            with self._lock:
                self._tables = {}

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._thread = None
                    return
                self._again = False
            self._tell()

    def _tell(self) -> None:
        for name, (session, statement) in self._tables.items():
            try:
                session.sql(statement)
            except Exception as error:
                _log.warning("the files of table %s are written, but %s failed: %s", name, statement, said(error))


_watched: Final = _Watched()


def _watch(name: str, session: Any, target: Target) -> None:
    if target.partition_by:
        # What went by being overwritten is no partition any more; what others have made is none of ours.
        statement = f"MSCK REPAIR TABLE {name} {'SYNC' if target.mode == 'overwrite' else 'ADD'} PARTITIONS"
    else:
        statement = f"REFRESH TABLE {name}"
    _watched.add(name, session, statement)


def checkpointed() -> None:
    """Refresh the tables after a checkpoint of a job of this process. Returns at once."""
    _watched.checkpointed()


def status_changed(job_name: str, status: JobStatus) -> None:
    """Note the new status of a job of this process; if the job has ended, refresh the tables and wait for that."""
    _watched.status_changed(job_name, status)
