"""What was taken of the heap, made into rows by whoever reads it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, Final, TypeAlias

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import key_groups
from sluiceway.serializers import KEY_SERIALIZER, Block, Row, are_plain, block_kind, encode_block, encode_rows
from sluiceway.state import BackendContext, TableKind, TableSchema
from sluiceway_memory._heap import Frozen, HeapEntries

__all__ = ["PART", "HeapSnapshot", "Layer"]


PART: Final = 8192
"""Keys that are looked at in one go."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A namespace of a table.

    Attributes:
        index: of the table.
        schema: of the table.
        namespace: its name.
        entries: it as it goes on.
        frozen: what is in it.
    """

    index: int
    schema: TableSchema
    namespace: Hashable
    entries: HeapEntries
    frozen: Frozen


Part: TypeAlias = "tuple[list[Any], dict[int, array[int]]]"
"""Some keys, and by key group where among them its keys are. Nobody changes it."""

Order: TypeAlias = "tuple[Part, ...]"
"""The keys of a namespace, in the order of the dict."""


class HeapSnapshot(Mapping[int, bytes]):
    """Rows by key group, made when they are asked for first.

    Args:
        context: of the backend.
        layers: what was taken.
        kept: rows and blocks that are there already, with their key groups.
    """

    def __init__(self, context: BackendContext, layers: list[Layer], kept: list[tuple[int, Row | Block]]) -> None:
        self._context = context
        self._layers = layers
        self._kept = kept
        self._groups: dict[int, bytes] | None = None
        self._released = False
        self._lock = Lock()

    def release(self) -> None:
        """Nobody will read it any more."""
        with self._lock:
            self._released = True
            self._layers, self._kept, self._groups = [], [], None

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
                self._layers, self._kept = [], []  # from now on the values may be changed again
            return self._groups

    def _make(self) -> dict[int, bytes]:
        rows: defaultdict[int, list[Row]] = defaultdict(list)
        blocks: defaultdict[int, list[Block]] = defaultdict(list)
        for layer in self._layers:
            self._add(layer, rows, blocks)
        for group, kept in self._kept:
            (blocks[group] if isinstance(kept, Block) else rows[group]).append(kept)  # type: ignore[arg-type]
        return {g: encode_rows(rows.get(g, []), blocks.get(g, ())) for g in {**rows, **blocks}}

    def _add(self, layer: Layer, rows: defaultdict[int, list[Row]], blocks: defaultdict[int, list[Block]]) -> None:
        # In the order of the dict, a part at a time, once: to get at objects that lie far apart in memory takes
        # longer than to encode them; and a long call to C keeps the task's thread waiting.
        namespace = KEY_SERIALIZER.dumps(layer.namespace)
        is_value = layer.schema.meta.kind is TableKind.VALUE
        order: Order = getattr(layer.entries, "order", ())
        parts: list[Part] = []
        all_keys, all_values = iter(layer.frozen.values), iter(layer.frozen.values.values())
        while keys := list(islice(all_keys, PART)):
            values = list(islice(all_values, PART))
            # Keys mostly stay, and that equal ones are of the same group is known from the snapshot before.
            part = order[len(parts)] if len(parts) < len(order) else None
            if part is None or part[0] != keys:
                part = keys, self._placed(layer, keys)
            parts.append(part)
            plain = are_plain(values)
            kind = block_kind(layer.schema.serializer, values) if is_value and plain and are_plain(keys) else None
            for group, places in part[1].items():
                own = [keys[i] for i in places], [values[i] for i in places]
                block = None if kind is None else encode_block(layer.index, namespace, kind, *own)
                if block is not None:
                    blocks[group].append(block)
                else:
                    rows[group] += self._rows(layer, namespace, *own)
        layer.entries.order = tuple(parts)

    def _rows(self, layer: Layer, namespace: bytes, keys: list[Any], values: list[Any]) -> Iterator[Row]:
        index, dump_key, encoded = layer.index, KEY_SERIALIZER.dumps, layer.frozen.encoded
        for key, value in zip(keys, values, strict=True):
            try:
                data = encoded(key, value)
            except SerializationError as error:
                state, operator = layer.schema.meta.name, self._context.operator
                raise SerializationError(
                    f"state {state!r} of operator {operator!r}, key {key!r}: {error}"
                ) from error
            yield Row(index, namespace, dump_key(key), data)

    def _placed(self, layer: Layer, keys: list[Any]) -> dict[int, array[int]]:
        start, end = self._context.key_groups
        places: defaultdict[int, array[int]] = defaultdict(lambda: array("H"))
        for place, group in enumerate(key_groups(keys, self._context.max_parallelism)):
            places[group].append(place)
        for group, found in places.items():
            if not start <= group < end:
                raise self._foreign(layer.schema.meta.name, keys[found[0]], group)
        return dict(places)

    def _foreign(self, state: str, key: Any, group: int) -> StateError:
        context = self._context
        start, end = context.key_groups
        return StateError(
            f"state {state!r} of operator {context.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {context.subtask} owns the groups {start} to {end - 1}: a key selector must give the same "
            "key for the same record every time"
        )
