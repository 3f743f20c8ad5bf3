"""Log of one subtask in Spark's state store: per micro-batch, one record of what changed.

Keyed state in a record is a change record of the core, one per operator: see sluiceway.state.changelog.format.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.stepped import Position
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.state import KeyedSnapshot
from sluiceway.state.changelog import ChangeLog, snapshot_of

__all__ = ["LogWriter", "Saved", "keyed_state", "saved"]

_VERSION: Final = 1
_MOST: Final = 64
_MORE: Final = 1 << 18
"""A log of more records than that, or of so many bytes more than when it was whole, is written anew."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """Changes of a subtask in one micro-batch.

    Attributes:
        version: of this layout.
        whole: whether it is all there is.
        position: pickled; empty: as it was.
        others: what the operators keep besides keyed state, pickled; empty: as it was.
        changes: by uid, what has changed of keyed state.
    """

    version: int
    whole: bool
    position: bytes
    others: bytes
    changes: dict[str, bytes]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class Saved:
    """Content of a log.

    Attributes:
        position: where the subtask was.
        operators: the state of its steps.
    """

    position: Position | None
    operators: tuple[OperatorSnapshot, ...]


def saved(records: Iterable[bytes]) -> Saved:
    """Return the state that records give, oldest first. Raises CorruptStreamError."""
    read = [_read(record) for record in records]
    position = others = b""
    for record in read:
        position, others = record.position or position, record.others or others
    keyed = _keyed(read)
    operators: tuple[OperatorSnapshot, ...] = pickle.loads(others) if others else ()
    return Saved(
        pickle.loads(position) if position else None,
        tuple(replace(o, keyed=keyed[o.uid]) if o.uid in keyed else o for o in operators),
    )


def keyed_state(records: Iterable[bytes]) -> dict[str, KeyedSnapshot]:
    """Return the keyed state by uid that records give, oldest first. Unpickles nothing."""
    return _keyed([_read(record) for record in records])


def _keyed(records: Iterable[Record]) -> dict[str, KeyedSnapshot]:
    changes: dict[str, list[bytes]] = {}
    for record in records:
        if record.whole:
            changes = {}
        for uid, change in record.changes.items():
            changes.setdefault(uid, []).append(change)
    return {uid: snapshot_of(parts) for uid, parts in changes.items()}


def _read(data: bytes) -> Record:
    try:
        record = _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"these {len(data)} bytes are no record of a subtask's state: {error}") from error
    if record.version != _VERSION:
        raise CorruptStreamError(
            f"state of layout {record.version} in Spark's store cannot be read: this version knows {_VERSION}"
        )
    return record


class LogWriter:
    """Writer of the records of one subtask.

    Args:
        sizes: of the records that the log has already.
    """

    def __init__(self, sizes: Sequence[int] = ()) -> None:
        self._sizes = list(sizes)
        self._position = self._others = b""

    def begin_with(self, saved: Saved) -> None:
        """Begin with a state that the log has already."""
        self._position = _position(saved.position)
        self._others = _others(saved.operators)

    @property
    def wants_all(self) -> bool:
        """Return whether the next record has to be a full one."""
        sizes = self._sizes
        return not sizes or len(sizes) > _MOST or sum(sizes[1:]) > sizes[0] + _MORE

    def record(
        self, position: Position | None, operators: Sequence[OperatorSnapshot], *, whole: bool
    ) -> bytes | None:
        """Return the record to append, or to replace all others with if it is whole; None: nothing has changed."""
        changes: dict[str, bytes] = {}
        for taken in operators:
            if taken.keyed is not None:
                log = taken.keyed.groups
                assert type(log) is ChangeLog
                if log.latest is not None:
                    changes[taken.uid] = log.latest
        at, others = _position(position), _others(operators)
        if not (whole or changes or at != self._position or others != self._others):
            return None
        record = _encode(
            Record(
                _VERSION,
                whole,
                at if whole or at != self._position else b"",
                others if whole or others != self._others else b"",
                changes,
            )
        )
        self._position, self._others = at, others
        self._sizes = [len(record)] if whole else [*self._sizes, len(record)]
        return record


def _position(position: Position | None) -> bytes:
    # Numbers within channels go on from where they are, but begin anew where nobody knows them: a micro-batch
    # is sorted by them, and what they were in the one before is nothing to it.
    return _pickled(position and replace(position, seqs=(0,) * len(position.seqs)))


def _others(operators: Sequence[OperatorSnapshot]) -> bytes:
    return _pickled(tuple(replace(taken, keyed=None) for taken in operators))


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # classes of the program are in no module that could be imported here
        return dumps_with_classes(value)
