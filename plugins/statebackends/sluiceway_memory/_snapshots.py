"""What was taken of the heap, made into rows by whoever reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import key_group
from sluiceway.serializers import KEY_SERIALIZER, Row, encode_rows
from sluiceway.state import BackendContext, TableSchema
from sluiceway_memory._heap import Frozen

__all__ = ["HeapSnapshot", "Layer"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A namespace of a table.

    Attributes:
        index: of the table.
        schema: of the table.
        namespace: its name.
        frozen: what is in it.
    """

    index: int
    schema: TableSchema
    namespace: Hashable
    frozen: Frozen


class HeapSnapshot(Mapping[int, bytes]):
    """Rows by key group, made when they are asked for first.

    Args:
        context: of the backend.
        layers: what was taken.
        rows: rows that are there already, with their key groups.
    """

    def __init__(self, context: BackendContext, layers: list[Layer], rows: list[tuple[int, Row]]) -> None:
        self._context = context
        self._layers = layers
        self._rows = rows
        self._groups: dict[int, bytes] | None = None
        self._released = False
        self._lock = Lock()

    def release(self) -> None:
        """Nobody will read it any more."""
        with self._lock:
            self._released = True
            self._layers, self._rows, self._groups = [], [], None

    def __getitem__(self, group: int) -> bytes:
        return self._made()[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self._made()),)

    def _made(self) -> dict[int, bytes]:
        with self._lock:
            if self._released:
                raise StateError(f"the snapshot of the state of operator {self._context.operator!r} was released")
            if self._groups is None:
                self._groups = self._make()
                self._layers, self._rows = [], []  # from now on the values may be changed again
            return self._groups

    def _make(self) -> dict[int, bytes]:
        groups: defaultdict[int, list[Row]] = defaultdict(list)
        for layer in self._layers:
            self._add(layer, groups)
        for group, row in self._rows:
            groups[group].append(row)
        return {group: encode_rows(rows) for group, rows in groups.items()}

    def _add(self, layer: Layer, groups: defaultdict[int, list[Row]]) -> None:
        index, dump_key, encoded = layer.index, KEY_SERIALIZER.dumps, layer.frozen.encoded
        most = self._context.max_parallelism
        start, end = self._context.key_groups
        namespace = dump_key(layer.namespace)
        for key, value in layer.frozen.values.items():
            group = key_group(key, most)
            if not start <= group < end:
                raise self._foreign(layer.schema.meta.name, key, group)
            try:
                data = encoded(key, value)
            except SerializationError as error:
                state, operator = layer.schema.meta.name, self._context.operator
                raise SerializationError(
                    f"state {state!r} of operator {operator!r}, key {key!r}: {error}"
                ) from error
            groups[group].append(Row(index, namespace, dump_key(key), data))

    def _foreign(self, state: str, key: Any, group: int) -> StateError:
        context = self._context
        start, end = context.key_groups
        return StateError(
            f"state {state!r} of operator {context.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {context.subtask} owns the groups {start} to {end - 1}: a key selector must give the same "
            "key for the same record every time"
        )
