"""Queries of the state of one key, from outside the functions that use it."""

# ruff: noqa: D102 - the methods of the backend are those of the contract

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from sluiceway.errors import StateQueryError, choose
from sluiceway.operators.keyed_state.handles import MISSING
from sluiceway.serializers import KEY_SERIALIZER
from sluiceway.state import (
    VOID_NAMESPACE,
    KeyedSnapshot,
    KeyedStateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableKind,
    TableSchema,
)

__all__ = ["Found", "NotedBackend", "as_key", "key_candidates", "key_of_json", "missing_key"]

_KEYS: Final = 10_000
_NAMESPACES: Final = 1_000
"""Largest number of keys and namespaces that a query examines, as it blocks the task."""


@dataclass(frozen=True, slots=True)
class Found:
    """State of one key in one namespace, in the form of snapshots.

    Attributes:
        namespace: written by :data:`KEY_SERIALIZER`.
        key: written by :data:`KEY_SERIALIZER`.
        values: written by the serializer of the table; one, or of a MAP table one for each entry.
    """

    namespace: bytes
    key: bytes
    values: list[bytes]


def as_key(value: Any) -> Any:
    """Return a key or namespace for a value of JSON: tuples for lists."""
    return tuple(map(as_key, value)) if isinstance(value, list) else value


def key_of_json(text: str) -> Any:
    """Return the key or namespace that a text is as JSON. Raises ValueError if it is none."""
    try:
        return as_key(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def key_candidates(text: str, type_: Any = None) -> list[Any]:
    """Return the keys that a text can mean: its value as JSON, and the text itself.

    Args:
        text: text that the user has entered.
        type_: type of keys, if known; candidates of other types are left out.

    Raises:
        StateQueryError: the text is no key of that type.
    """
    try:
        parsed = [key_of_json(text)]
        hash(parsed[0])
    except (ValueError, TypeError):
        parsed = []
    found = [*parsed, text] if parsed != [text] else [text]
    if type_ is str:
        return [key for key in found if type(key) is str]
    if type_ in (int, float, bool, tuple, type(None)):
        found = [key for key in parsed if isinstance(key, type_) or (type_ is float and isinstance(key, int))]
        if not found:
            raise StateQueryError(f"the key {text!r} is not of the type of keys here, {type_.__name__}")
    return found


def missing_key(text: str, state: str, uid: str, keys: Iterable[Any]) -> StateQueryError:
    """Return the error for a key without such state; it names some keys that have it."""
    known = list(dict.fromkeys(map(str, keys)))  # a key is in several windows
    near = get_close_matches(text, known, n=3) or known[:3]
    some = f"; others are {', '.join(map(repr, near))}" if near else "; no key has any"
    return StateQueryError(f"the key {text!r} has no state {state!r} in step {uid!r}{some}")


class NotedBackend(KeyedStateBackend):
    """Backend that records the descriptors of its tables, so that they can be queried.

    Args:
        backend: holds the state.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._known: dict[str, StateDescriptor] = {}
        self.expires_in_compaction = backend.expires_in_compaction  # type: ignore[misc]

    def table(self, descriptor: StateDescriptor) -> StateTable:
        table = self._backend.table(descriptor)
        if descriptor.name not in self._known:
            self._known[descriptor.name] = descriptor
        return table

    def snapshot(self) -> KeyedSnapshot:
        return self._backend.snapshot()

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._backend.restore(snapshots)

    def close(self) -> None:
        self._backend.close()

    def look(
        self,
        uid: str,
        state: str,
        text: str,
        keys: Sequence[Any],
        namespace: Hashable | None,
        hidden: Iterable[str],
    ) -> tuple[StateMeta, list[Found]]:
        """Read the state of a key, between batches. Nothing is changed, and no time to live is renewed.

        Args:
            uid: of the step, for messages.
            state: name of the state.
            text: key as the user has entered it, for messages.
            keys: keys that it may mean; the first one with state is used.
            namespace: namespace to read; None: all.
            hidden: names of tables that are not for users.

        Raises:
            UnknownNameError: no state has that name.
            StateQueryError: no such key has any; names some that have.
        """
        descriptor = self._known.get(state)
        if descriptor is None or state in hidden:
            raise choose("state", state, self._known.keys() - set(hidden), f"of step {uid!r}")
        table, schema = self._backend.table(descriptor), TableSchema.of(descriptor)
        there = list(islice(table.namespaces(), _NAMESPACES))
        namespaces = there if namespace is None else [name for name in there if name == namespace]
        for key in keys:
            found = [held for name in namespaces if (held := _look(table, schema, key, name)) is not None]
            if found:
                return schema.meta, found
        raise missing_key(text, state, uid, islice(_all_keys(table, namespaces), _KEYS))


def _all_keys(table: StateTable, namespaces: Iterable[Hashable]) -> Iterator[Any]:
    for namespace in namespaces:
        yield from table.keys(namespace)


def _look(table: StateTable, schema: TableSchema, key: Any, namespace: Hashable = VOID_NAMESPACE) -> Found | None:
    dumps = schema.serializer.dumps
    if schema.meta.kind is TableKind.MAP:
        values = [dumps(entry) for entry in table.mapping(key, namespace).items()]
    else:
        held = table.entries(namespace).get(key, MISSING)
        values = [] if held is MISSING else [dumps(held)]
    return Found(KEY_SERIALIZER.dumps(namespace), KEY_SERIALIZER.dumps(key), values) if values else None
