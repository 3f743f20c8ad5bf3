"""Snapshots of the heap, made into rows by their readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from threading import Lock
from typing import Any, Final, TypeAlias

import msgspec

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import in_key_groups
from sluiceway.serializers import (
    KEY_SERIALIZER,
    Block,
    MsgspecSerializer,
    Row,
    are_plain,
    block_kind,
    encode_rows,
    pack,
)
from sluiceway.state import BackendContext, TableKind, TableSchema
from sluiceway.state.heap.entries import Encode, Frozen, HeapEntries
from sluiceway.util.garbage_collector import gc_paused

__all__ = ["PART", "Blocks", "HeapSnapshot", "Layer", "Rows"]


# A smaller part fits into the cache of a core, but each makes a block for each key group: with 2,048 keys and 128
# groups that cost more than it saved (docs/notes/0009).
PART: Final = 8192
"""Keys that are looked at in one go."""


class Layer(msgspec.Struct, frozen=True):
    """Namespace of a table.

    Attributes:
        index: index of the table.
        schema: schema of the table.
        namespace: its name.
        entries: its live entries.
        frozen: its entries as of the snapshot.
        make: makes the entries; None: they exist already.
    """

    index: int
    schema: TableSchema
    namespace: Hashable
    entries: HeapEntries
    frozen: Frozen
    make: Callable[[], Mapping[Any, Any]] | None = None

    @classmethod
    def of(
        cls, index: int, schema: TableSchema, namespace: Hashable, values: dict[Any, Any], encode: Encode
    ) -> Layer:
        """Return a layer of values that no code gets before they were read."""
        return cls(index, schema, namespace, HeapEntries(), Frozen(values, encode))


class Part:
    """Some keys in the order of a dict, and the distribution of their values to key groups. Immutable.

    Attributes:
        keys: the keys.
        deal: makes of their values a tuple in the order of key groups.
        shares: of each key group: start and end of its values in that tuple, and its keys as blocks have
            them.
        plain: True if blocks can have all of its keys.
    """

    __slots__ = ("deal", "keys", "plain", "shares")

    def __init__(self, keys: list[Any], max_parallelism: int) -> None:
        self.keys = keys
        order, shares = in_key_groups(keys, max_parallelism)
        # itemgetter() of one index returns the item, not a tuple of one.
        self.deal: Callable[[list[Any]], Sequence[Any]] = itemgetter(*order) if len(order) > 1 else tuple
        dealt, plain = self.deal(keys), are_plain(keys)
        self.shares = [
            (group, start, end, pack(dealt[start:end]) if plain else None) for group, start, end in shares
        ]
        self.plain = all(keys is not None for _, _, _, keys in self.shares)


Rows: TypeAlias = "defaultdict[int, list[Row]]"
Blocks: TypeAlias = "defaultdict[int, list[Block]]"

Pairs: TypeAlias = "tuple[Sequence[Any], Sequence[Any]]"
"""Keys, and their values."""

Order: TypeAlias = "tuple[Part, ...]"
"""The keys of a namespace."""


class HeapSnapshot(Mapping[int, bytes]):
    """Rows by key group, made at the first access.

    Args:
        context: context of the backend.
        layers: the state.
        kept: rows and blocks that exist already, with their key groups.
    """

    def __init__(self, context: BackendContext, layers: list[Layer], kept: list[tuple[int, Row | Block]]) -> None:
        self._context = context
        self._layers = layers
        self._kept = kept
        self._groups: Mapping[int, bytes] | None = None
        self._released = False
        self._lock = Lock()

    def release(self) -> None:
        """Free the state, which is not read any more."""
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

    def _made(self) -> Mapping[int, bytes]:
        # Readers in several threads: the first one makes the rows, the others wait for them.
        with self._lock:
            if self._released:
                raise StateError(f"the snapshot of the state of operator {self._context.operator!r} was released")
            if self._groups is None:
                with gc_paused():
                    self._groups = self._make()
                    self._layers, self._kept = [], []  # from now on the values may be changed again
            return self._groups

    def _make(self) -> Mapping[int, bytes]:
        rows: Rows = defaultdict(list)
        blocks: Blocks = defaultdict(list)
        return self.encode(rows, blocks, self._steps(rows, blocks))

    def encode(self, rows: Rows, blocks: Blocks, steps: Iterator[None]) -> Mapping[int, bytes]:
        """Make all rows by key group, as :func:`sluiceway.serializers.encode_rows` has them; for subclasses.

        Args:
            rows: by key group, empty at first; each step adds some.
            blocks: likewise.
            steps: iterates over the state. Between steps, rows and blocks may be taken away.
        """
        for _ in steps:
            pass
        return {g: encode_rows(rows.get(g, []), blocks.get(g, ())) for g in {**rows, **blocks}}

    def _steps(self, rows: Rows, blocks: Blocks) -> Iterator[None]:
        for layer in self._layers:
            yield from self._add(layer, rows, blocks)
        for group, kept in self._kept:
            (blocks[group] if isinstance(kept, Block) else rows[group]).append(kept)  # type: ignore[arg-type]
            yield

    def _add(self, layer: Layer, rows: Rows, blocks: Blocks) -> Iterator[None]:
        # In the order of the dict, a part at a time, once: to get at objects that lie far apart in memory takes
        # longer than to encode them; and a long call to C keeps the task's thread waiting.
        index, namespace = layer.index, KEY_SERIALIZER.dumps(layer.namespace)
        is_value = layer.schema.meta.kind is TableKind.VALUE
        if layer.make is not None:
            layer.frozen.values = dict(layer.make())
        order: Order = getattr(layer.entries, "order", ())
        parts: list[Part] = []
        all_keys, all_values = iter(layer.frozen.values), iter(layer.frozen.values.values())
        while keys := list(islice(all_keys, PART)):
            values = list(islice(all_values, PART))
            # Keys mostly stay, and that equal ones are of the same group is known from the snapshot before.
            part = order[len(parts)] if len(parts) < len(order) else None
            if part is None or part.keys != keys:
                part = Part(keys, self._context.max_parallelism)
                self._check_groups(layer, part)
            parts.append(part)
            packed = self._packed(layer, part, values) if is_value else None
            if packed is None:
                dealt_keys, dealt = part.deal(keys), part.deal(values)
                for group, start, end, own_keys in part.shares:
                    rest: Pairs = dealt_keys[start:end], dealt[start:end]
                    if is_value and own_keys is not None:
                        block, rest = self._typed(layer, namespace, own_keys, *rest)
                        blocks[group] += block
                    rows[group] += self._rows(layer, namespace, *rest)
                    yield  # they may be large
                continue
            pickled, contents = packed
            for (group, _, _, own_keys), content in zip(part.shares, contents, strict=True):
                assert own_keys is not None
                blocks[group].append(Block(index, namespace, pickled, own_keys, content))
            yield
        # For the next snapshot. Two readers at a time may set it: one assignment of parts that nobody changes.
        layer.entries.order = tuple(parts)

    def _packed(self, layer: Layer, part: Part, values: list[Any]) -> tuple[bool, list[bytes]] | None:
        """Return the values of a part for blocks; None where they have to be rows."""
        if not part.plain or not are_plain(values[:1]):
            return None
        dealt = part.deal(values)
        contents: list[bytes] = []
        for _, start, end, _ in part.shares:
            # Packed first, for to pack them brings them all into the processor's cache faster than to look at
            # them, and looked at at once, while they are there: that takes a third of the time it takes later.
            some = dealt[start:end]
            content = pack(some)
            if content is None or not are_plain(some):
                return None
            contents.append(content)
        kind = block_kind(layer.schema.serializer, values)
        return None if kind is None else (kind, contents)

    def _typed(
        self, layer: Layer, namespace: bytes, packed: bytes, keys: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[Block], Pairs]:
        """Return a block of values of a declared type, which may be changed in place, and what does not fit."""
        serializer = layer.schema.serializer
        if type(serializer) is not MsgspecSerializer or (content := serializer.pack_all(values)) is None:
            return [], (keys, values)
        # Looked at only now: whoever has changed a value before it was packed has had it kept first.
        gone = layer.frozen.handed_out(keys)
        if not gone:
            return [Block(layer.index, namespace, False, packed, content)], ((), ())
        stay = [place for place, key in enumerate(keys) if key not in gone]
        kept_keys = [keys[place] for place in stay]
        own_keys, own = pack(kept_keys), serializer.pack_all([values[place] for place in stay])
        # Handed out while the rest was packed again: no attempt after the second, all become rows.
        if not stay or own_keys is None or own is None or layer.frozen.handed_out(kept_keys):
            return [], (keys, values)
        block = Block(layer.index, namespace, False, own_keys, own)
        others = [place for place, key in enumerate(keys) if key in gone]
        return [block], ([keys[place] for place in others], [values[place] for place in others])

    def _rows(self, layer: Layer, namespace: bytes, keys: Sequence[Any], values: Sequence[Any]) -> Iterator[Row]:
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

    def _check_groups(self, layer: Layer, part: Part) -> None:
        start, end = self._context.key_groups
        for group, first, _, _ in part.shares:
            if not start <= group < end:
                raise self._foreign(layer.schema.meta.name, part.deal(part.keys)[first], group)

    def _foreign(self, state: str, key: Any, group: int) -> StateError:
        context = self._context
        start, end = context.key_groups
        return StateError(
            f"state {state!r} of operator {context.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {context.subtask} owns the groups {start} to {end - 1}: a key selector must give the same "
            "key for the same record every time"
        )
