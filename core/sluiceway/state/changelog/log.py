"""Snapshots of keyed state as a change log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluiceway.errors import StateError
from sluiceway.serializers import encode_rows
from sluiceway.state import KeyedSnapshot
from sluiceway.state.changelog.fold import ChangeFold, plain_key
from sluiceway.state.changelog.format import decode_record
from sluiceway.state.changelog.record import ChangeRecord, places_of

__all__ = ["ChangeLog", "snapshot_of"]


class ChangeLog(Mapping[int, bytes]):
    """Change log as the ``groups`` of a snapshot: rows by key group, folded when they are first read.

    Args:
        records: encoded records; the first one is whole unless the log is not to be read.
        latest: the record that was taken with this snapshot; None: nothing has changed.

    Raises:
        StateError: on reading, the log does not begin with a whole record.
        CorruptStreamError: on reading, a record is damaged.
    """

    def __init__(self, records: Sequence[bytes], latest: bytes | None = None) -> None:
        self.records = tuple(records)
        self.latest = latest
        self._groups: dict[int, bytes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangeLog, (self.records, self.latest)

    def __getitem__(self, group: int) -> bytes:
        return self._folded()[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._folded())

    def __len__(self) -> int:
        return len(self._folded())

    def changes(self) -> list[ChangeRecord]:
        """Return the records from the last whole one on, decoded.

        Raises:
            StateError: none of them is whole.
            CorruptStreamError: one of them is damaged.
        """
        found: list[ChangeRecord] = []
        for record in map(decode_record, self.records):
            if record.whole:
                found.clear()
            found.append(record)
        if not found or not found[0].whole:
            raise StateError("a change log does not begin with a whole record, so its state cannot be restored")
        return found

    def _folded(self) -> dict[int, bytes]:
        if self._groups is None:
            changes = self.changes()
            fold = ChangeFold(plain_key)  # logs are also read where the classes of the job are missing
            for change in changes:
                fold.add(change, tables=places_of(change.tables, changes[-1].tables))
            self._groups = {group: encode_rows(list(fold.rows(group))) for group in fold.groups()}
        return self._groups


def snapshot_of(records: Sequence[bytes]) -> KeyedSnapshot:
    """Return the state of a change log.

    Args:
        records: encoded records, the first of them whole.

    Raises:
        StateError: none of them is whole.
        CorruptStreamError: one of them is damaged.
    """
    log = ChangeLog(records)
    return KeyedSnapshot(log.changes()[-1].metas(), log)
