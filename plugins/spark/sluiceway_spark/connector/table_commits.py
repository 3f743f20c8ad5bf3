"""Transactions of SparkTableSink: staged files appended to a table by the session, each set once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sluiceway.errors import ConnectorError
from sluiceway_spark.connector.table_target import APPEND, OVERWRITE, TableDescription, TableTarget
from sluiceway_spark.connector.target_directory import Place
from sluiceway_spark.session.configuration import said

__all__ = ["TableCommits"]

_APP: Final = "sluiceway.app-id"
_VERSION: Final = "sluiceway.version"


class TableCommits:
    """Committer of staged files, in the process that has the session.

    Args:
        description: of the table, with its session.
    """

    def __init__(self, description: TableDescription) -> None:
        self._description = description
        self._runs: set[str] = set()
        self._tried: dict[str, int] = {}

    def know(self, run: str) -> None:
        """Note a run that begins in this process: what it has not tried to commit here was tried nowhere."""
        self._runs.add(run)

    def commit(self, target: TableTarget, place: Place, app: str, version: int, files: Sequence[str]) -> None:
        """Commit staged files in one transaction, and remove them. Harmless if it is done already.

        Args:
            target: the table.
            place: the staging directory.
            app: application id of the transaction.
            version: its version; those of one application id are committed in order.
            files: names of the staged files.

        Raises:
            ConnectorError: Spark refuses, or the files are gone and no transaction has them.
        """
        session = self._description.session.session()
        with place.failing_with("read"):
            there = set(place.names())
        missing = [name for name in files if name not in there]
        try:
            # Delta skips a transaction that it has; Iceberg has to be asked, as far as another attempt can have
            # come this far. Files go when the table has them, so that missing ones have to be in the table.
            if missing or (target.form == "iceberg" and self._is_tried(app, version)):
                if _is_committed(session, target, app, version):
                    files = [name for name in files if name in there]
                    self._remove(place, files)
                    return
                if missing:
                    raise ConnectorError(
                        f"cannot commit to table {target.name}: {target.staging}/{missing[0]} is gone, and no "
                        f"transaction {version} of {app} is in the history of the table. Was it removed by hand, "
                        "or does another job of this name write to the table?"
                    )
            # Before the write: one whose outcome is unknown counts as tried.
            self._tried[app] = version
            _write(_frame(session, target, files), target, app, version)
        except ConnectorError:
            raise
        except Exception as error:
            raise ConnectorError(f"cannot commit to table {target.name}: {said(error)}") from error
        self._remove(place, files)

    def _is_tried(self, app: str, version: int) -> bool:
        """Return whether the transaction may have been tried before, here or by an earlier process."""
        is_own = any(f"-{run}" in app for run in self._runs)
        return not is_own or version <= self._tried.get(app, -1)

    def _remove(self, place: Place, files: Sequence[str]) -> None:
        with place.failing_with("remove staged files in"):
            for name in files:
                place.remove(name)


def _frame(session: Any, target: TableTarget, files: Sequence[str]) -> Any:
    from pyspark.sql.types import StructType

    struct = StructType.fromJson(json.loads(target.struct))
    if not files:
        return session.createDataFrame([], struct)
    root = target.staging if "://" in target.staging else f"file://{target.staging}"
    return session.read.schema(struct).parquet(*(f"{root}/{name}" for name in files))


def _write(frame: Any, target: TableTarget, app: str, version: int) -> None:
    # Not saveAsTable: with mode "overwrite" that replaces the table, and with it partitioning and properties.
    writer = frame.writeTo(target.name)
    if target.form == "delta":
        writer = writer.option("txnAppId", app).option("txnVersion", str(version))
        writer = writer.option("userMetadata", _mark(app, version))
    else:
        writer = writer.option(f"snapshot-property.{_APP}", app)
        writer = writer.option(f"snapshot-property.{_VERSION}", str(version))
    if target.mode == APPEND:
        writer.append()
    elif target.mode == OVERWRITE:
        from pyspark.sql.functions import lit

        writer.overwrite(lit(True))
    else:
        writer.overwritePartitions()


def _is_committed(session: Any, target: TableTarget, app: str, version: int) -> bool:
    from pyspark.sql.functions import col

    if target.form == "delta":
        history = session.sql(f"DESCRIBE HISTORY {target.name}")
        return bool(history.where(col("userMetadata") == _mark(app, version)).limit(1).count())
    summary = session.table(f"{target.name}.snapshots")
    found = summary.where(
        (col("summary").getItem(_APP) == app) & (col("summary").getItem(_VERSION) == str(version))
    )
    return bool(found.limit(1).count())


def _mark(app: str, version: int) -> str:
    return f"{app}:{version}"
