"""Cache of the values of a namespace: dicts in front of the database, written back in bulk.

A mapping has layers, and the first that knows a key has the truth:

- *young*: what was assigned since the last snapshot and is not in the database; a removed key is there as
  :data:`MISSING`;
- *frozen*: what the database did not have when a snapshot was taken that goes by it, until it has; a value is
  never handed out from there, only a copy of it;
- *logged*: what the database does not have, but a file of changes has that belongs to the last snapshot; none of
  it is young, too. While that file is being written, nothing that can be changed is handed out but copies;
- *clean*: what the database has, too, the latest in use last;
- the database.

Logged objects, then young ones are written back in small steps, the oldest first, and are clean then; what was
clean for longest is forgotten. So an object that is used again and again stays, and no step takes long.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Hashable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from itertools import chain, filterfalse, islice, repeat
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol

from sluiceway.serializers import are_plain
from sluiceway.state import TableSchema
from sluiceway_rocksdb._row_keys import pack_prefix

__all__ = ["MISSING", "CacheControl", "CachedEntries", "Layer", "NamespaceRows"]

MISSING: Final[Any] = object()
# For searches in bulk by identity: == between the user's values may give no truth value, as with arrays.
_MISSING_ID: Final = id(MISSING)
_PART: Final = 5_000
"""Most values that are assigned at a time."""
_AHEAD: Final = 10_000
"""Most keys that are looked at to find one that is there."""
# Types whose objects cannot change: they need no copy where a snapshot still reads them.
_ATOMS: Final = frozenset({NoneType, bool, int, float, str, bytes})


class _Prefixes(dict[int, bytes]):
    """Prefixes of row keys by key group, made on first use."""

    __slots__ = ("_namespace", "_table")

    def __init__(self, table: int, namespace: bytes) -> None:
        super().__init__()
        self._table = table
        self._namespace = namespace

    def __missing__(self, group: int) -> bytes:
        found = self[group] = pack_prefix(group, self._table, self._namespace)
        return found


class CacheControl(Protocol):
    """Control over the memory of all namespaces of a subtask, and over the snapshot that is being made."""

    def make_room(self, entries: CachedEntries, more: int = 0) -> None:
        """Write back and forget objects if a namespace has grown too much, or will by so many."""

    def measure(self, count: int, size: int) -> None:
        """Note that so many objects took so many bytes."""

    def drop(self, entries: CachedEntries) -> None:
        """Drop a namespace."""

    def settle_before(self, table: NamespaceRows, namespace: bytes) -> None:
        """Delete what was dropped of a namespace that is used again."""

    def settle_dropped(self) -> None:
        """Delete all namespaces that were dropped."""

    def settle_if_done(self) -> None:
        """Finish with the last snapshot if it has been made or has failed."""


class NamespaceRows(Protocol):
    """Table of a namespace: rows in the database, and their encoding.

    Attributes:
        cache: to which memory is accounted.
        index: of the table.
        schema: of the table.
    """

    cache: CacheControl
    index: int
    schema: TableSchema

    def heat(self, entries: CachedEntries) -> None:
        """Note that a namespace has objects in memory."""

    def cool(self, entries: CachedEntries) -> None:
        """Note that a namespace has no object in memory."""

    def encode(self, value: Any) -> bytes:
        """Return a value as the database has it."""

    def encode_of(self, key: Hashable, value: Any) -> bytes:
        """Return a value as the database has it. Raises SerializationError, which names the key."""

    def row_value(self, value: Any) -> bytes | list[bytes]:
        """Return a value as a row of a snapshot has it."""

    def decode(self, data: bytes) -> Any:
        """Return a new object for a value of the database."""

    def load(self, entries: CachedEntries, key: Hashable) -> Any:
        """Return the value of a key from the database, or MISSING."""

    def load_all(self, entries: CachedEntries, keys: list[Any]) -> dict[Any, Any]:
        """Return the values of those keys that the database has."""

    def stored(self, entries: CachedEntries) -> Iterator[tuple[Any, bytes]]:
        """Yield the keys of a namespace in the database with their values."""

    def write(
        self, entries: CachedEntries, layer: dict[Any, Any]
    ) -> Iterator[Iterable[tuple[bytes, bytes | None]]]:
        """Yield the rows for a layer, many at a time. Safe in any thread."""

    def written(self, entries: CachedEntries) -> None:
        """Note that the database has rows of a namespace."""

    def delete_rows(self, entries: CachedEntries) -> None:
        """Delete a namespace from the database."""


class Layer(NamedTuple):
    """Values of a namespace in a snapshot.

    Attributes:
        entries: of the namespace.
        values: by key; nobody changes the dict, nor the values.
        gone: keys that were removed; else these are among the values, as :data:`MISSING`.
    """

    entries: CachedEntries
    values: dict[Any, Any]
    gone: Sequence[Any] = ()


class CachedEntries(MutableMapping[Any, Any]):
    """Mapping of the values of a namespace by key.

    Args:
        table: whose they are.
        name: the namespace.
        namespace: as the database has it.
        stored: whether the database may have rows of it.
        groups: the key groups in which it has, or None if that is not known.

    Attributes:
        guarded: whether a snapshot is reading what is logged.
        dropped: whether the namespace was dropped.
        holes: whether the young layer may have removed keys.
        known: whether the database or a snapshot may have rows of it, so that a removed key must be remembered.
        prefixes: by key group, what the keys of its rows begin with.
        check: how large the young layer may become before the backend is asked for room.
        check_clean: the same of the clean one.
        seen: a key that is there, for whoever asks whether any is; MISSING: none is known.
        size: of the young layer, when something was assigned last.
        whole: whether all that the database has of it is in memory, too.
    """

    __slots__ = (
        "__weakref__",
        "_get",
        "check",
        "check_clean",
        "clean",
        "dropped",
        "frozen",
        "groups",
        "guarded",
        "holes",
        "known",
        "logged",
        "name",
        "namespace",
        "prefixes",
        "seen",
        "size",
        "stored",
        "table",
        "whole",
        "young",
    )

    def __init__(
        self, table: NamespaceRows, name: Hashable, namespace: bytes, stored: bool, groups: set[int] | None
    ) -> None:
        self.table = table
        self.name = name
        self.namespace = namespace
        self.stored = stored
        self.known = stored
        self.whole = not stored
        self.groups = set[int]() if groups is None and not stored else groups
        self.prefixes = _Prefixes(table.index, namespace)
        self.frozen: dict[Any, Any] | None = None
        self.logged: dict[Any, Any] = {}
        self.clean: dict[Any, Any] = {}
        self.dropped = self.guarded = False
        self.check = self.check_clean = 0
        self.begin({})

    def begin(self, young: dict[Any, Any]) -> None:
        """Set the young layer."""
        self.young = young
        self.size = len(young)
        self.holes = _MISSING_ID in map(id, young.values())
        self.seen: Any = MISSING
        self._get = young.get

    # -- what is called for each record --------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        found = self._get(key, MISSING)
        if found is MISSING:
            found = self._find(key)
            if found is MISSING:
                return default
        return found

    def __getitem__(self, key: Any) -> Any:
        found = self._get(key, MISSING)
        if found is MISSING:
            found = self._find(key)
            if found is MISSING:
                raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        young = self.young
        young[key] = value
        size = len(young)
        # A new key, which leaves the older layers: each key is in one of young, logged and clean. To assign a key
        # that is young already costs no more than this comparison.
        if size != self.size:
            self.size = size
            if self.logged:
                self.logged.pop(key, None)
            if self.clean:
                self.clean.pop(key, None)
            if size > self.check:
                self.table.cache.make_room(self)
                self.size = len(self.young)

    def __contains__(self, key: object) -> bool:
        found = self._get(key, MISSING)
        return found is not MISSING or self._find(key) is not MISSING

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        found = self._get(key, MISSING)
        if found is MISSING:
            found = self._find(key)
            if found is MISSING:
                if default is MISSING:
                    raise KeyError(key)
                return default
        if self.seen is not MISSING and key == self.seen:
            self.seen = MISSING
        # The mark hides rows that the database or a snapshot may have. Without such rows nothing has to be
        # remembered.
        if self.known:
            self[key] = MISSING
            self.holes = True
        else:
            del self.young[key]
            self.size -= 1
        return found

    def setdefault(self, key: Any, default: Any = None) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            self[key] = found = default
        return found

    def _find(self, key: Any) -> Any:
        frozen = None if self.frozen is None and not self.guarded else self._still_frozen()
        if key in self.young:  # removed, or back from a snapshot that was given up
            return self.young[key]
        if frozen is not None and key in frozen:
            found = frozen[key]
            if found is not MISSING:
                found = self._adopt(key, self._copy(found))
            return found
        found = self.logged.get(key, MISSING)
        if found is not MISSING:
            if self.guarded:
                found = self.logged[key] = self._copy(found)
            return found
        found = self.clean.pop(key, MISSING)
        if found is not MISSING:
            self.clean[key] = found  # behind all others
            return found
        if self.whole:
            return MISSING
        found = self.table.load(self, key)
        return found if found is MISSING else self._adopt(key, found)

    def _still_frozen(self) -> dict[Any, Any] | None:
        self.table.cache.settle_if_done()
        return self.frozen

    def _adopt(self, key: Any, value: Any) -> Any:
        clean = self.clean
        clean[key] = value
        if len(clean) > self.check_clean:
            self.table.cache.make_room(self)
        return value

    def _copy(self, value: Any) -> Any:
        cls = type(value)
        if cls in _ATOMS or (cls is tuple and all(type(part) in _ATOMS for part in value)):
            return value
        return self.table.decode(self.table.encode(value))

    # -- what is called for each batch ---------------------------------------------------------------------------

    def working(self, keys: Sequence[Any]) -> MutableMapping[Any, Any]:
        """Return itself, or a dict with the values of these keys, which become young: they will be assigned."""
        if self.guarded or self.frozen is not None:
            self.table.cache.settle_if_done()
        young = self.young
        lacking = list(dict.fromkeys(filterfalse(young.__contains__, keys)))
        if lacking and len(young) + len(lacking) > self.check:
            self.table.cache.make_room(self, len(lacking))
            self.table.heat(self)
            young = self.young  # of which some may have been written back
            lacking = list(dict.fromkeys(filterfalse(young.__contains__, keys)))
        # A bare dict would show removed keys with MISSING as their value.
        if self.holes:
            return self
        if lacking:
            self._bring(lacking)
        return young

    def _bring(self, keys: list[Any]) -> None:
        """Have those of the keys in the young layer that are anywhere. None is there, nor twice in the list."""
        young = self.young
        if self.frozen is not None:
            keys = self._thawed(keys, self.frozen)
        for layer in (self.logged, self.clean):
            if not layer:
                continue
            # Popped: what is brought into the young layer is in no other.
            values = list(map(layer.pop, keys, repeat(MISSING)))
            found, absent = dict(zip(keys, values, strict=True)), []
            if _MISSING_ID in map(id, values):
                absent = [key for key, value in found.items() if value is MISSING]
                for key in absent:
                    del found[key]
            young.update(self._copies(found) if self.guarded and layer is self.logged else found)
            if not absent:
                return
            keys = absent
        if keys and not self.whole:
            young.update(self.table.load_all(self, keys))

    def _thawed(self, keys: list[Any], frozen: dict[Any, Any]) -> list[Any]:
        """Have those in the young layer that are in the frozen one; returns the others."""
        found = {key: frozen[key] for key in keys if key in frozen}
        if not found:
            return keys
        present = {key: value for key, value in found.items() if value is not MISSING}
        self.young.update(self._copies(present))
        return [key for key in keys if key not in found]

    def _copies(self, found: dict[Any, Any]) -> dict[Any, Any]:
        """Return entries with a copy of each value that can be changed."""
        if are_plain(list(found.values())):
            return found
        return {key: self._copy(value) for key, value in found.items()}

    def read(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Return the values of those of the keys that there are; what the database alone has stays there alone."""
        self.table.cache.settle_if_done()
        found, lacking = {}, list(keys)
        for layer in (self.young, self.frozen, self.logged, self.clean):
            if layer and lacking:
                found.update({key: layer[key] for key in lacking if key in layer})
                lacking = [key for key in lacking if key not in layer]
        if found:
            present = {key: value for key, value in found.items() if value is not MISSING}
            found = self._copies(present)
        if lacking and not self.whole:
            found.update(self.table.load_all(self, lacking))
        return found

    def update(self, other: Any = (), /, **named: Any) -> None:
        # Read as they are assigned, and only as many as there is room for: together they may exceed memory.
        items = chain(other.items() if isinstance(other, Mapping) else other, named.items())
        while part := dict(islice(items, max(min(self.check - len(self.young), _PART), 1))):
            self.young.update(part)
            for layer in (self.logged, self.clean):
                if layer:
                    for key in part:
                        layer.pop(key, None)
            self.size = len(self.young)
            if self.size > self.check:
                self.table.cache.make_room(self)
                self.size = len(self.young)

    def remove(self, keys: Iterable[Any]) -> None:
        """Remove keys. What the database has of them is not looked for: a mark for each hides it."""
        self.seen = MISSING
        if not self.known:
            for key in keys:
                self.pop(key, None)
            return
        for key in keys:
            self[key] = MISSING
        self.holes = True

    @property
    def is_cool(self) -> bool:
        """True if nothing is in memory."""
        return not (self.young or self.logged or self.clean) and self.frozen is None

    # -- snapshots -----------------------------------------------------------------------------------------------

    def set_aside(self) -> dict[Any, Any]:
        """Freeze all that the database does not have, and return it. Empty: nothing to freeze."""
        layer = self.young
        if self.logged:
            if len(layer) <= len(self.logged):
                self.logged.update(layer)
                layer = self.logged
            else:
                layer.update(self.logged)  # none of which is young
            self.logged = {}
        if layer:
            self.frozen = layer
            self.known = True
            self.begin({})
        return layer

    def hand_over(self, *, everything: bool) -> Layer:
        """Log what is young, and return it for a file of changes; with ``everything``, all that was logged, too.

        Until :meth:`logging_is_over`, what is logged is handed out in copies, and removed keys stay young.
        """
        young, logged = self.young, self.logged
        gone = [key for key, value in young.items() if value is MISSING] if self.holes else []
        present = {key: value for key, value in young.items() if value is not MISSING} if gone else young
        # The smaller layer is put into the larger one. `present` is never changed below: the snapshot reads it
        # meanwhile.
        if len(present) <= len(logged):
            logged.update(present)
        else:
            merged = dict(present)
            merged.update(logged)  # none of which is young
            self.logged = merged
        for key in gone:
            self.clean.pop(key, None)  # it came there when an earlier snapshot was written
        if everything:
            present, gone = dict(self.logged), []
        if present or gone:
            self.known = self.guarded = True
        self.begin(dict.fromkeys(gone, MISSING))
        return Layer(self, present, gone)

    def logging_is_over(self, gone: Sequence[Any], *, done: bool) -> None:
        """Note that a file of changes has been written, or will not be."""
        self.guarded = False
        # The writer of the file has deleted their rows. If it failed there may be rows, and the marks stay.
        if gone and done:
            young = self.young
            for key in gone:
                if young.get(key) is MISSING:
                    del young[key]
            self.begin(young)

    # -- all of them ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.walk(None))

    def __len__(self) -> int:
        if not self.known:
            return len(self.young)
        return sum(1 for _ in self.walk(None))

    def __bool__(self) -> bool:
        if self.logged or (self.young and not self.holes):
            return True
        # Windows ask after each key that they remove: the layers are walked once for many of these.
        if self.seen is not MISSING:
            return True
        ahead = [key for key, _ in islice(self.walk(None), _AHEAD)]
        # One from the middle, as keys may go from either end.
        self.seen = ahead[len(ahead) // 2] if ahead else MISSING
        return bool(ahead)

    def keys(self) -> KeysView[Any]:
        return KeysView(self)

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def walk(self, decode: Callable[[bytes], Any] | None) -> Iterator[tuple[Any, Any]]:
        """Yield keys with their values, as of the first step; with None for values if ``decode`` is None."""
        newest = self._newest(decode)
        if self.whole:
            return ((key, value) for key, value in newest.items() if value is not MISSING)
        return self._walk_stored(newest, decode)

    def newest_keys(self) -> list[Any]:
        """Return the keys whose latest values the database may lack."""
        return [key for key, value in self._newest(None).items() if value is not MISSING]

    def _newest(self, decode: Callable[[bytes], Any] | None) -> dict[Any, Any]:
        """Return what hides the rows of the database, removed keys as MISSING; all there is if it is whole."""
        self.table.cache.settle_if_done()
        newest: dict[Any, Any] = dict(self.clean) if self.whole else {}
        newest.update(self._copies(self.logged) if self.guarded and decode is not None else self.logged)
        if self.frozen is not None:
            young = self.young
            for key, value in self.frozen.items():
                # Of the copies that were handed out, the one in the clean layer may be changed already.
                if key not in young:
                    newest[key] = value if value is MISSING or decode is None else self._copy(value)
        newest.update(self.young)
        return newest

    def _walk_stored(
        self, newest: dict[Any, Any], decode: Callable[[bytes], Any] | None
    ) -> Iterator[tuple[Any, Any]]:
        for key, data in self.table.stored(self):
            if key not in newest:
                yield key, None if decode is None else decode(data)
        for key, value in newest.items():
            if value is not MISSING:
                yield key, value

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        entries: Any = self._mapping  # type: ignore[attr-defined]
        return entries.walk(entries.table.decode)  # type: ignore[no-any-return]


class _Values(ValuesView[Any]):
    def __iter__(self) -> Iterator[Any]:
        entries: Any = self._mapping  # type: ignore[attr-defined]
        return (value for _, value in entries.walk(entries.table.decode))
