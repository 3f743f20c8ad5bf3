"""Descriptions of tables, for backends and snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.persisted import persisted
from sluiceway.serializers import Serializer, serializer_for
from sluiceway.serializers.evolution import Form, IncompatibleSchemaError, reader_of, schema_of
from sluiceway.state.descriptors import (
    BlockStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)
from sluiceway.types import is_known, type_name

__all__ = ["StateMeta", "TableKind", "TableSchema"]

_MIGRATE: Final = "give its descriptor migrate=, a function that makes a new value of an old one, "


@persisted("TableKind")
class TableKind(Enum):
    """Kind of what one (key, namespace) of a table holds."""

    VALUE = "value"
    MAP = "map"


@persisted("StateMeta")
@dataclass(frozen=True, slots=True)
class StateMeta:
    """Description of one table in a snapshot, readable without the job's code.

    Attributes:
        name: the table's name.
        kind: value or map.
        serializer: name of the serializer that wrote the values.
        version: that serializer's version.
        type_name: the declared type as text, ``""`` where none was declared.
        expires: True if each value is in a pair ``(ms since the epoch of the last access, value)``,
            because the state has a time to live.
        declared: the kind that was declared, for people: ``list``.
        ttl_ms: the time to live, for people.
        schema: schema of the values, with the names of their fields, as plain data; None where they are pickled.
    """

    name: str
    kind: TableKind
    serializer: str
    version: int
    type_name: str = ""
    expires: bool = False
    declared: str = field(default="", compare=False)
    ttl_ms: int | None = field(default=None, compare=False)
    schema: Any = field(default=None, hash=False)

    def is_form_of(self, other: StateMeta) -> bool:
        """Return whether a snapshot may hold one table in both forms: they differ only in the schema of a type.

        A subtask that has not asked for a state writes it again in the form in which it was restored.
        """
        if self == other:
            return True
        if self.schema is None or other.schema is None:
            return False
        mine = (self.name, self.kind, self.serializer, self.version, self.expires)
        return mine == (other.name, other.kind, other.serializer, other.version, other.expires)

    def __str__(self) -> str:
        content = self.type_name or "values of no declared type"
        lives = " with a time to live" if self.expires else ""
        written = f"serializer {self.serializer!r}, version {self.version}"
        return f"a {self.kind.value} table of {content}{lives} ({written})"


class TableSchema(msgspec.Struct, frozen=True):
    """Schema of a table, derived from its descriptor: the same for all backends.

    Attributes:
        meta: description in the table's snapshots.
        serializer: for the values of a VALUE table, for pairs ``(key, value)`` of a MAP table.
        hint: the type that the serializer is for.
        migrate: ``migrate`` of the descriptor.
        blocks: True if the descriptor is a :class:`~sluiceway.state.BlockStateDescriptor`.
    """

    meta: StateMeta
    serializer: Serializer
    hint: Any = None
    migrate: Callable[[Any], Any] | None = None
    blocks: bool = False

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> TableSchema:
        """Return the schema of the table for ``descriptor``."""
        # `declared` is what the serializer is for: with a time to live, the time of access stands beside each
        # value. `shown` is the type without it, for messages.
        kind = TableKind.VALUE
        shown: Any = descriptor.type
        element: Any = descriptor.type
        if descriptor.expires and is_known(element):
            element = tuple[int, element]
        declared: Any = element
        if isinstance(descriptor, MapStateDescriptor):
            kind = TableKind.MAP
            if is_known(descriptor.key_type) and is_known(descriptor.type):
                declared = tuple[descriptor.key_type, element]  # type: ignore[name-defined]
                shown = dict[descriptor.key_type, descriptor.type]  # type: ignore[name-defined]
            else:
                declared = shown = None
        elif isinstance(descriptor, ListStateDescriptor) and is_known(descriptor.type):
            declared, shown = list[element], list[descriptor.type]  # type: ignore[name-defined]
        serializer = serializer_for(declared)
        shown_name = type_name(shown) if is_known(shown) else ""
        name, expires = descriptor.name, descriptor.expires
        is_blocks = isinstance(descriptor, BlockStateDescriptor)
        # How a backend stores blocks is no part of what they are: checkpoints have them as values.
        declared_as = "value" if is_blocks else type(descriptor).__name__.removesuffix("StateDescriptor").lower()
        ttl_ms = descriptor.ttl.ttl_ms if descriptor.ttl is not None and expires else None
        schema = schema_of(serializer, declared)
        if descriptor.migrate is not None and schema is None:
            raise StateError(
                f"state {name!r} has migrate=, and no type whose fields are saved: declare type= as a dataclass, "
                "struct, named tuple, pydantic model, or made of scalars and collections (and key_type= for a map)"
            )
        meta = StateMeta(
            name, kind, serializer.name, serializer.version, shown_name, expires, declared_as, ttl_ms, schema
        )
        return cls(meta, serializer, declared, descriptor.migrate, is_blocks)

    def check_same(self, other: StateMeta, operator: str) -> None:
        """Check a second declaration of the table. Raises StateError if kind or type differ."""
        mine = self.meta
        if (mine.kind, mine.type_name, mine.expires) != (other.kind, other.type_name, other.expires):
            raise StateError(
                f"state {mine.name!r} of operator {operator!r} is declared twice: as {mine}, and as "
                f"{other}. Give one of them another name"
            )

    def reader_for(self, written: StateMeta, operator: str) -> Serializer:
        """Return the serializer to read what a snapshot holds of this table.

        Raises:
            IncompatibleStateError: kind, type, serializer or version do not go together; names state, old and new.
        """
        new = self.meta
        if written.expires != new.expires and (written.kind, written.type_name) == (new.kind, new.type_name):
            had, has = ("a", "none") if written.expires else ("no", "one")
            raise IncompatibleStateError(
                f"state {new.name!r} of operator {operator!r} cannot be restored: it was saved with {had} time to "
                f"live, the job declares {has}. Declare it as it was (ttl may be of another length), give the new "
                "one another name, or start without the snapshot"
            )
        # A list can be read only as a list; records of earlier versions do not name the kind.
        if written.declared and "list" in (written.declared, new.declared) and written.declared != new.declared:
            raise IncompatibleStateError(
                f"state {new.name!r} of operator {operator!r} cannot be restored: it was saved as "
                f"{written.declared} state, the job declares {new.declared} state. Declare it as it was, give the "
                "new one another name, or start without the snapshot"
            )
        reason = ""
        try:
            if written.kind is new.kind and (reader := self._reader(written)) is not None:
                return reader
        except IncompatibleSchemaError as error:
            reason = f": {error}"
        raise IncompatibleStateError(
            f"state {new.name!r} of operator {operator!r} cannot be restored: the snapshot holds {written}, the "
            f"job declares {new}{reason}. Declare it as it was, {_MIGRATE if reason else ''}give the new one "
            "another name, or start without the snapshot"
        )

    def _reader(self, written: StateMeta) -> Serializer | None:
        new = self.meta
        layers: tuple[str, ...] = ("map",) if new.kind is TableKind.MAP else ()
        if written.expires != new.expires:
            return None
        layers += ("list",) if new.declared == "list" else ()
        layers += ("touched",) if new.expires else ()
        old = Form(written.serializer, written.version, written.type_name, written.schema)
        now = Form(new.serializer, new.version, new.type_name, new.schema)
        return reader_of(old, now, self.serializer, self.hint, layers, self.migrate)
