"""Writer of SparkTableSink: stages rows as Parquet files and has the session commit them."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.errors import ConfigurationError
from sluiceway_spark.connector.column_file import ColumnFile
from sluiceway_spark.connector.table_commits import TableCommits
from sluiceway_spark.connector.table_target import APPEND, TableTarget
from sluiceway_spark.connector.target_directory import Place
from sluiceway_spark.conversion.records_to_arrow import Columns
from sluiceway_spark.persisted import StagedRows

__all__ = ["TableWriter"]

_RECORDS_HELD: Final = 8192
_ROW_GROUP_SIZE: Final = 100_000
_BYTES_HELD: Final = 64 << 20
_FILE_SIZE: Final = 128 << 20
"""Bytes after which a staged file is complete, so that Spark reads a large commit in several tasks."""

_CODEC: Final = "snappy"


class TableWriter(CommittingSinkWriter[Any]):
    """Writer of staged files, one or more for each checkpoint with rows.

    In Spark's tasks the driver commits what all subtasks have staged, in one transaction. Elsewhere the session is
    in this process, and each subtask commits a transaction of its own.

    Args:
        target: the table.
        context: given by the runtime.
        commits: the session's side, used where no task of Spark runs.
    """

    def __init__(self, target: TableTarget, context: WriterContext, commits: TableCommits) -> None:
        self._target = target
        self._context = context
        self._commits = commits
        self._columns = Columns(target.schema, str(target))
        self._place = Place(target.staging, target.options)
        owner = hashlib.sha256(f"{context.job_name}\0{context.uid}\0{target.name}".encode()).hexdigest()[:12]
        self._owner = owner
        self._attempt = uuid.uuid4().hex[:12]
        self._is_joint = _in_task()
        # Subtasks of a shipped run share its id. Elsewhere each attempt has its own, whatever its checkpoints are
        # numbered.
        run = target.run if self._is_joint else self._attempt
        commits.know(run)
        self._app = f"sluiceway-{owner}-{run}"
        self._records: list[Any] = []
        self._file: ColumnFile | None = None
        self._name = ""
        self._number = 0
        self._staged: list[str] = []
        self._rows = 0

    def open(self) -> None:
        """Create the staging directory. Raise ConfigurationError if a replacing mode cannot work here."""
        with self._place.failing_with("stage rows in"):
            self._place.make()
        if self._target.mode == APPEND or self._is_joint:
            return
        if self._context.parallelism > 1:
            raise ConfigurationError(
                f"{self._target}: mode={self._target.mode!r} takes one writer, as each writer commits for itself "
                "and would replace the rows of the others; add set_parallelism(1) behind sink(...), or run it on "
                "engine 'spark'"
            )

    def recover(self, committables: Sequence[Any]) -> None:
        """Commit what is not committed yet, and remove staged files that no commit knows of."""
        self.commit(committables)
        with self._place.failing_with("stage rows in"):
            self._remove_left()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Collect records, and stage them in groups of some thousand."""
        self._records += values
        if len(self._records) >= _RECORDS_HELD or _is_columns(values):
            self._convert()

    def flush(self) -> None:
        """Do nothing: files are completed at a checkpoint."""

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        """Complete the files and return their committable; in a replacing mode also without rows."""
        self._convert()
        self._complete()
        files, self._staged = tuple(self._staged), []
        rows, self._rows = self._rows, 0
        if not files and self._target.mode == APPEND:
            return []
        if files and self._context.has_checkpoints:
            with self._place.failing_with("stage rows in"):
                # The names, too: the commit may come after a loss of power.
                self._place.sync({""})
        return [StagedRows(self._app, checkpoint_id, files, rows)]

    def commit(self, committables: Sequence[Any]) -> None:
        """Commit each transaction, in the order of versions."""
        parts: dict[tuple[str, int], list[StagedRows]] = {}
        for one in committables:
            parts.setdefault((one.app, one.version), []).append(one)
        for app, version in sorted(parts):
            files = [name for one in parts[app, version] for name in one.files]
            self._commits.commit(self._target, self._place, app, version, files)

    def close(self) -> None:
        """Remove the files that no commit was prepared for."""
        self._records = []
        file, self._file = self._file, None
        left, self._staged = self._staged, []
        if file is not None:
            left.append(self._name)
            with suppress(Exception):  # what is not complete counts for nothing
                file.abandon()
            with suppress(Exception):
                file.file.close()
        for name in left:
            with suppress(OSError):
                self._place.remove(name)

    def _convert(self) -> None:
        records, self._records = self._records, []
        for batch in self._columns.batches(records):
            if batch.num_rows:
                with self._place.failing_with("stage rows in"):
                    self._add(batch)

    def _add(self, batch: Any) -> None:
        file = self._file
        if file is None:
            self._name = f"{self._owner}-{self._context.subtask}-{self._number}-{self._attempt}.parquet"
            self._number += 1
            opened = self._place.create(self._name)
            try:
                file = ColumnFile(opened, "parquet", _CODEC, self._target.schema, str(self._target))
            except BaseException:
                opened.close()
                self._place.remove(self._name)
                raise
            self._file = file
        self._rows += batch.num_rows
        file.add(batch)
        if file.rows >= _ROW_GROUP_SIZE or file.held >= _BYTES_HELD:
            file.write()
            if file.written >= _FILE_SIZE:
                self._complete()

    def _complete(self) -> None:
        file = self._file
        if file is None:
            return
        with self._place.failing_with("stage rows in"):
            file.finish()
            self._file = None
            self._staged.append(self._name)
            self._place.close(file.file, durably=self._context.has_checkpoints)

    def _remove_left(self) -> None:
        """Remove files of earlier attempts of the subtasks whose place this one takes: no checkpoint has them."""
        pattern = re.compile(rf"{self._owner}-(\d+)-.*\.parquet")
        own = f"-{self._attempt}.parquet"
        for name in self._place.names():
            match = pattern.fullmatch(name)
            if (
                match
                and not name.endswith(own)
                # Subtasks that are no more, after a change of the parallelism, are shared out.
                and int(match[1]) % self._context.parallelism == self._context.subtask
            ):
                self._place.remove(name)


def _in_task() -> bool:
    """Return whether a task of Spark runs this, whose driver commits for all subtasks."""
    from pyspark import TaskContext

    return TaskContext.get() is not None


def _is_columns(values: Sequence[Any]) -> bool:
    return bool(values) and hasattr(values[0], "num_rows")
