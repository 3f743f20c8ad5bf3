"""The two ways in which rows get into the table: as they come, and with a checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sluiceway.connector import CommittingSinkWriter, SinkWriter, WriterContext
from sluiceway_sql._rows import Row, Rows
from sluiceway_sql._table import Table, Target

__all__ = ["CommittingSqlWriter", "SqlWriter"]

_ROWS_HELD: Final = 10_000
_NAME_LENGTH: Final = 200


class _Writer(SinkWriter[Any]):
    """Holds rows; of several with one key the last."""

    remembers: bool = False

    def __init__(self, target: Target, context: WriterContext) -> None:
        self._rows = Rows(target.columns, str(target))
        self._key = itemgetter(*map(target.columns.index, target.key)) if target.key else None
        self._added: list[Row] = []
        self._by_key: dict[Any, Row] = {}
        self.table = Table(target)

    def open(self) -> None:
        self.table.open(self.remembers)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        rows = self._rows.of(values)
        if self._key is None:
            self._added += rows
        else:
            self._by_key.update(zip(map(self._key, rows), rows, strict=True))

    @property
    def held(self) -> int:
        """How many rows there are."""
        return len(self._added) + len(self._by_key)

    def take(self) -> list[Row]:
        """The rows; none are held any more."""
        rows = self._added or list(self._by_key.values())
        self._added, self._by_key = [], {}
        return rows

    def close(self) -> None:
        self.table.close()


class SqlWriter(_Writer):
    """Writes rows when input runs dry, at checkpoints, and when there are many."""

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        super().write(values, timestamps)
        if self.held >= _ROWS_HELD:
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.table.write(self.take())


Committable: TypeAlias = tuple[str, int, list[Row]]
"""Which writer, its number for the checkpoint, the rows."""


class CommittingSqlWriter(_Writer, CommittingSinkWriter[Any]):
    """Writes rows when their checkpoint is complete.

    Each attempt is a writer of its own, with numbers of its own: it need not know how far others have come.
    """

    remembers = True

    def __init__(self, target: Target, context: WriterContext) -> None:
        super().__init__(target, context)
        step = f"{context.job_name}/{context.uid}"[:_NAME_LENGTH]
        self._writer = f"{step}/{context.subtask}/{uuid.uuid4().hex}"
        self._number = 0

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        if not self.held:
            return []
        if not self._number:
            self.table.introduce(self._writer)
        self._number += 1
        return [(self._writer, self._number, self.take())]

    def commit(self, committables: Sequence[Committable]) -> None:
        if committables:
            self.table.commit(committables)
