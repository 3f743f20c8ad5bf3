"""Types of saved keys, compared with those that a step's key functions return now."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import NoneType
from typing import Any, Final, TypeAlias
from uuid import UUID

from sluiceway.checkpoint import CheckpointMetadata, StateReader
from sluiceway.checkpoint.offline_reader import Decoder
from sluiceway.serializers import decode_rows
from sluiceway.state import StateMeta
from sluiceway.steps import key_type
from sluiceway.streamgraph import StreamNode
from sluiceway.types import is_known, members, type_name

__all__ = ["SavedKeyTypes", "can_be_equal", "declared_key_types", "names_of_types", "saved_key_types"]

SavedKeyTypes: TypeAlias = Callable[[str], Mapping[str, frozenset[Any]]]
"""Function from the uid of a step to the types of its keys, by name of the state."""

_GROUPS: Final = 8
_ROWS: Final = 1_000
"""Number of key groups of a step, and of rows in each, whose keys are examined. Each group is a read of the
storage, so that their number must not grow with the subtasks; keys rarely mix types."""
_NUMBER: Final = "number"
_FAMILIES: Final[Mapping[type, str]] = {
    **dict.fromkeys((bool, int, float, complex, Decimal, Fraction), _NUMBER),
    **{cls: cls.__name__ for cls in (str, bytes, NoneType, tuple, datetime, date, time, timedelta, UUID)},
}
"""Families of classes whose objects are never equal to those of another; other classes may define equality."""


def declared_key_types(node: StreamNode) -> tuple[Any, ...]:
    """Return the type of the keys of each keyed input of a step; empty if one of them is not known."""
    types = [key_type(key) for key in node.step.keys if key is not None]
    return tuple(types) if all(map(is_known, types)) else ()


def can_be_equal(one: Any, other: Any) -> bool:
    """Return False if no object of one type is equal to one of the other, True if that is not certain."""
    return any(_alike(a, b) for a in members(one) or (Any,) for b in members(other) or (Any,))


def _alike(one: Any, other: Any) -> bool:
    first, second = _family(one), _family(other)
    if "" in (first, second) or first != second:
        return "" in (first, second)
    if first != tuple.__name__:
        return True
    parts, others = typing.get_args(one), typing.get_args(other)
    # A bare tuple has no arguments, and tuple[int, ...] any length.
    if not parts or not others or Ellipsis in parts or Ellipsis in others:
        return True
    return len(parts) == len(others) and all(map(can_be_equal, parts, others))


def _family(of: Any) -> str:
    cls = typing.get_origin(of) or of
    return _FAMILIES.get(cls, "") if isinstance(cls, type) else ""


def names_of_types(types: Iterable[Any]) -> str:
    """Return the names of types for a message, each once."""
    return " or ".join(sorted({type_name(each) for each in types}))


def saved_key_types(reader: StateReader, metadata: CheckpointMetadata, uid: str) -> dict[str, frozenset[Any]]:
    """Return the types of some saved keys of a step by name of the state.

    State in files of a backend is left out, as only the backend can extract its rows. A key that needs the
    classes of the job has the type of a placeholder, of which :func:`can_be_equal` knows nothing.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    decoder = Decoder(trusted=False)
    found: dict[str, set[Any]] = {}
    for rows, tables in islice(_groups(reader, metadata, uid), _GROUPS):
        for row in islice(decode_rows(rows), _ROWS):
            found.setdefault(tables[row.table].name, set()).add(_type_of(decoder.key(row.key)))
    return {name: frozenset(types) for name, types in found.items()}


def _groups(
    reader: StateReader, metadata: CheckpointMetadata, uid: str
) -> Iterator[tuple[bytes, Sequence[StateMeta]]]:
    for _, _, operator in metadata.operators(uid):
        if operator.keyed is not None and operator.keyed.native is None:
            snapshot = reader.keyed(uid, operator.keyed)
            for group in snapshot.groups:
                yield snapshot.groups[group], snapshot.tables


def _type_of(key: Any) -> Any:
    cls = type(key)
    if cls is not tuple:
        return cls
    return tuple[tuple(map(_type_of, key))] if key else tuple  # type: ignore[misc]
