"""Delta and Iceberg tables as targets of a sink: found, created or extended before a job begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_spark.connector.catalog_tables import quoted, sql_type
from sluiceway_spark.connector.column_file import CODECS
from sluiceway_spark.connector.dataframes import package_advice
from sluiceway_spark.connector.target_directory import absolute
from sluiceway_spark.conversion.arrow_schema import schema_of
from sluiceway_spark.session.configuration import SessionConf, said

__all__ = ["APPEND", "FORMATS", "MODES", "OVERWRITE", "PARTITIONS", "TableDescription", "TableTarget"]

APPEND: Final = "append"
OVERWRITE: Final = "overwrite"
PARTITIONS: Final = "overwrite_partitions"
MODES: Final = (APPEND, OVERWRITE, PARTITIONS)
FORMATS: Final = ("delta", "iceberg")

_STAGING: Final = "_sluiceway"
"""Directory of staged files in a table's location: Spark, VACUUM and remove_orphan_files skip such names."""


@dataclass(frozen=True)
class TableTarget:
    """Existing table, as writers and commits need it.

    Attributes:
        name: as SQL has it.
        form: ``delta`` or ``iceberg``.
        schema: its columns, in Arrow.
        struct: its columns, as Spark's JSON.
        mode: one of :data:`MODES`.
        staging: directory of staged files, absolute, or a URL.
        options: for the filesystem of the staged files.
        run: part of the application id of transactions; another one for each run.
        is_shipped: whether this was unpickled, in a task.
    """

    name: str
    form: str
    schema: Any
    struct: str
    mode: str
    staging: str
    options: Mapping[str, Any]
    run: str
    is_shipped: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_shipped": True}

    def __str__(self) -> str:
        return f"SparkTableSink to {self.name}"


@dataclass(frozen=True)
class TableDescription:
    """Table as a program describes it. Attributes are the arguments of SparkTableSink."""

    name: str
    session: SessionConf
    schema: Any
    form: str | None
    partition_by: tuple[str, ...]
    mode: str
    add_columns: bool
    staging: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"SparkTableSink to {self.name}"

    def resolve(self, *, run: str) -> TableTarget:
        """Return the table, which is created, or gets new columns, where that was asked for.

        Args:
            run: part of the application id of transactions.

        Raises:
            ConnectorError: it cannot be written to.
            ConfigurationError: it is not as described.
        """
        session = self.session.session()
        try:
            if not _exists(session, self.name):
                self._create(session)
            rows = session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
            struct = session.table(self.name).schema
        except (ConfigurationError, ConnectorError):
            raise
        except Exception as error:
            raise ConnectorError(f"{self}: {said(error)}{package_advice(str(error))}") from error
        facts = {row.col_name: str(row.data_type) for row in rows}
        form = facts.get("Provider", "").lower()
        self._check_form(form, facts)
        self._check_parts(_parts_of(rows))
        if (missing := self._compare(schema_of(struct, str(self)))) and self.add_columns:
            columns = ", ".join(f"{quoted(f.name)} {sql_type(f.type, f.name)}" for f in missing)
            try:
                session.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({columns})")
                session.catalog.refreshTable(self.name)
                struct = session.table(self.name).schema
            except Exception as error:
                raise ConnectorError(f"{self}: columns cannot be added: {said(error)}") from error
        location = absolute(facts["Location"])
        staging = f"{location}/{_STAGING}" if self.staging is None else absolute(self.staging)
        schema = schema_of(struct, str(self))
        return TableTarget(self.name, form, schema, struct.json(), self.mode, staging, self.options, run)

    def _create(self, session: Any) -> None:
        if self.schema is None or self.form is None:
            raise ConfigurationError(
                f"{self}: there is no such table. To create it, give schema= and format='delta' or 'iceberg'"
            )
        columns = ", ".join(f"{quoted(f.name)} {sql_type(f.type, f.name)}" for f in self.schema)
        # Transforms of Iceberg, such as bucket(16, id), are no names.
        parts = ", ".join(part if "(" in part else quoted(part) for part in self.partition_by)
        by = f" PARTITIONED BY ({parts})" if parts else ""
        session.sql(f"CREATE TABLE {self.name} ({columns}) USING {self.form}{by}")

    def _check_form(self, form: str, facts: Mapping[str, str]) -> None:
        if facts.get("Type") == "VIEW":
            raise ConnectorError(f"{self}: that is a view, which cannot be written to")
        if form in CODECS:
            raise ConnectorError(f"{self}: that is a table of {form}, which SparkSink.table writes")
        if form not in FORMATS or "Location" not in facts:
            raise ConnectorError(
                f"{self}: that is a table of {form or 'an unknown kind'}, whose transactions have no id by which "
                "a repeated commit is recognised; tables of Delta and Iceberg can be written"
            )
        if self.form is not None and self.form != form:
            raise ConfigurationError(f"{self}: format={self.form!r}, but it is a table of {form}")

    def _check_parts(self, found: Sequence[str]) -> None:
        wanted = tuple(part.replace(" ", "") for part in self.partition_by)
        there = tuple(part.replace(" ", "") for part in found)
        if wanted and wanted != there:
            raise ConfigurationError(
                f"{self}: partition_by says {', '.join(wanted)}, but the table is partitioned by "
                f"{', '.join(there) or 'nothing'}"
            )
        if self.mode == PARTITIONS and not there:
            raise ConfigurationError(
                f"{self}: the table has no partitions, so that mode='overwrite_partitions' would replace all of "
                "it. Take mode='overwrite' for that"
            )

    def _compare(self, found: Any) -> list[Any]:
        """Return the columns that the table lacks. Raise ConfigurationError for what must not differ."""
        if self.schema is None:
            return []
        there = {column.name: column.type for column in found}
        missing = [column for column in self.schema if column.name not in there]
        if missing and not self.add_columns:
            raise ConfigurationError(
                f"{self}: the table has no column {missing[0].name!r}, which schema= has. Add it by ALTER TABLE, "
                "or set add_columns=True"
            )
        for column in self.schema:
            if column.name in there and str(column.type) != str(there[column.name]):
                raise ConfigurationError(
                    f"{self}: column {column.name!r} is {column.type} in schema=, but {there[column.name]} in the "
                    "table. Columns are not changed"
                )
        if extra := there.keys() - set(self.schema.names):
            raise ConfigurationError(
                f"{self}: the table has column {min(extra)!r}, which schema= lacks. Name all columns: a record "
                "may have None there"
            )
        return missing


def _exists(session: Any, name: str) -> bool:
    try:
        return bool(session.catalog.tableExists(name))
    except Exception as error:
        if "DELTA_MISSING_DELTA_TABLE" in str(error):  # a path of Delta raises instead
            return False
        raise


def _parts_of(rows: Sequence[Any]) -> list[str]:
    """Return the partitioning in a description: columns, or transforms of Iceberg."""
    names = [row.col_name for row in rows]
    if "# Partition Information" in names:
        # Behind this heading comes that of the columns.
        after = names[names.index("# Partition Information") + 2 :]
        return list(after[: after.index("")])
    if "# Partitioning" in names:
        begin = names.index("# Partitioning") + 1
        end = names.index("", begin)
        return [str(row.data_type) for row in rows[begin:end] if str(row.col_name).startswith("Part ")]
    return []
