"""The two ways in which rows get into the table: as they come, and with a checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sluiceway.connector import CommittingSinkWriter, SinkWriter, WriterContext
from sluiceway.elements import Columns
from sluiceway.errors import RejectedRecordError
from sluiceway_sql import _copying
from sluiceway_sql._rows import Row, Rows
from sluiceway_sql._table import Part, Table, Target

__all__ = ["CommittingSqlWriter", "SqlWriter"]

_ROWS_HELD: Final = 10_000
_COPIED_HELD: Final = 65_536
_BATCHES_HELD: Final = 256
_NAME_LENGTH: Final = 200


class SqlWriter(SinkWriter[Any]):
    """Writer of rows when input runs dry, at checkpoints, and when there are many.

    Of several tuples with one key it holds the last.
    """

    remembers: bool = False

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rows = Rows(target.columns, str(target))
        self._key = itemgetter(*map(target.columns.index, target.key)) if target.key else None
        self._added: list[Row] = []
        self._by_key: dict[Any, Row] = {}
        self._batches: list[Any] = []  # to be copied, of one schema
        self._parts: list[Part] = []  # held before those
        self._counted = 0  # rows in batches and parts
        self.table = Table(target)

    def open(self) -> None:
        self.table.open(self.remembers)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if type(values) is Columns:
            self._hold_columns(values)
        else:
            self._hold(self._rows.of(values))
        if self.held >= (_COPIED_HELD if self._batches else _ROWS_HELD):
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.table.write(self.take())

    def _hold_columns(self, values: Columns) -> None:
        data = _copying.selected(values.data, self._target.columns, str(self._target))
        self._check_keys(name for name in self._target.key if data.column(name).null_count)
        copied = _copying.copyable(data, str(self._target)) if self.table.copies else None
        if copied is None:
            self._hold(_copying.rows_of(data, str(self._target)))
            return
        # Parts keep the order in which rows came, which counts where several have the same key.
        if self._added or self._by_key or (self._batches and self._batches[0].schema != copied.schema):
            self._seal()
        self._batches.append(copied)
        self._counted += copied.num_rows
        if len(self._batches) >= _BATCHES_HELD:  # small ones take more memory than their rows
            self._seal()

    def _hold(self, rows: list[Row]) -> None:
        if self._batches:
            self._seal()
        if self._key is None:
            self._added += rows
            return
        keys = list(map(self._key, rows))
        if (None in keys) if len(self._target.key) == 1 else any(None in key for key in keys):
            self._check_keys(name for name, value in self._named_keys(rows) if value is None)
        if self.table.stores_nan_as_null:
            self._check_keys(
                (name for name, value in self._named_keys(rows) if isinstance(value, float) and isnan(value)),
                "NaN, which SQLite stores as null,",
            )
        try:
            self._by_key.update(zip(keys, rows, strict=True))
        except TypeError as error:
            raise RejectedRecordError(
                f"{self._target}: the key of a record cannot be compared with others: {error}. Have the "
                f"columns {', '.join(self._target.key)} hold texts, numbers, times or bytes"
            ) from error

    def _named_keys(self, rows: Iterable[Row]) -> Iterator[tuple[str, Any]]:
        """Yield column and value of each part of the keys of some rows."""
        at = [(name, self._target.columns.index(name)) for name in self._target.key]
        return ((name, row[i]) for row in rows for name, i in at)

    def _check_keys(self, nulls: Iterable[str], what: str = "null") -> None:
        if (name := next(iter(nulls), None)) is not None:
            raise RejectedRecordError(
                f"{self._target}: column {name!r} is {what} in a record, and of the key: databases take no null "
                "for equal to another one, so it would be written again with each restart. Filter such records out"
            )

    @property
    def held(self) -> int:
        """Number of rows."""
        return self._counted + len(self._added) + len(self._by_key)

    def take(self) -> list[Part]:
        """Return the rows; none are held any more."""
        self._seal()
        parts, self._parts, self._counted = self._parts, [], 0
        return parts

    def _seal(self) -> None:
        """Make a part of the rows that came last."""
        if rows := self._added or list(self._by_key.values()):
            self._counted += len(rows)
            self._parts.append(rows)
        elif self._batches:
            self._parts.append(_copying.to_bytes(self._batches))
        self._added, self._by_key, self._batches = [], {}, []

    def close(self) -> None:
        self.table.close()


Committable: TypeAlias = tuple[str, int, Part]
"""The writer, its number for the checkpoint, the rows."""


class CommittingSqlWriter(SqlWriter, CommittingSinkWriter[Any]):
    """Writer of rows when their checkpoint is complete.

    A restored run that takes none commits what the checkpoint has made ready, then writes as :class:`SqlWriter`.

    Each attempt is a writer of its own, with numbers of its own: it need not know how far others have come.
    """

    remembers = True

    def __init__(self, target: Target, context: WriterContext) -> None:
        super().__init__(target)
        step = f"{context.job_name}/{context.uid}"[:_NAME_LENGTH]
        self._writer = f"{step}/{context.subtask}/{uuid.uuid4().hex}"
        self._number = 0
        self._has_checkpoints = context.has_checkpoints

    def flush(self) -> None:
        if not self._has_checkpoints:  # rows would be kept until the end, and lost with a cancel
            super().flush()

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        if not self.held:
            return []
        # A row of this attempt exists before its first commit: one that is missing later was removed, and is told
        # as such.
        if not self._number:
            self.table.introduce(self._writer)
        ready = []
        for part in self.take():
            self._number += 1
            ready.append((self._writer, self._number, part))
        return ready

    def commit(self, committables: Sequence[Committable]) -> None:
        if committables:
            self.table.commit(committables)
