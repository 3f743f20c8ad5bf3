"""State: what users declare and touch, and what a state backend implements.

Users meet descriptors and the five kinds of keyed state. A backend knows only *tables*: one per state name,
from (key, namespace) to a value or to a mapping. The kinds are built over tables once, for all backends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import Serializer, serializer_for
from sluiceway.serializers.evolution import Form, IncompatibleSchemaError, reader_of, schema_of
from sluiceway.state_ttl import StateTtlConfig
from sluiceway.types import is_known, type_name

if TYPE_CHECKING:
    from sluiceway.functions import AggregateFunction, ReduceFunction

__all__ = [
    "VOID_NAMESPACE",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BackendContext",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "NativeFile",
    "NativeState",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateBackend",
    "StateDescriptor",
    "StateMeta",
    "StateTable",
    "TableKind",
    "TableSchema",
    "ValueState",
    "ValueStateDescriptor",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
ACC = TypeVar("ACC")

_MIGRATE: Final = "give its descriptor migrate=, a function that makes a new value of an old one, "

VOID_NAMESPACE: Final = ()
"""The namespace of state that belongs to a key alone."""


# ---- what users declare ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateDescriptor:
    """Names a state and says what is in it. Subclasses are the five kinds.

    Attributes:
        name: unique within the operator.
        type: the Python type of a value, for choosing a serializer; None lets any value in (pickled).
        ttl: how long entries live, for keyed state; None for ever.
        migrate: makes a value (an element of a list, the value of a map's entry) out of one that was saved when
            the type was another one. It is given plain data: records are dicts of their fields, sets lists, enums
            their values; what was pickled, as state of no type is, as it was. Without it, fields that have a
            default may be added, fields removed, renamed (:class:`~sluiceway.RenamedFrom`), and types widened.
    """

    name: str
    type: Any = None
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    migrate: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"{type(self).__name__}: the name of a state is a str, not {self.name!r:.60}")
        if not self.name:
            raise ValueError(f"{type(self).__name__}: a state needs a name")
        if self.ttl is not None and not isinstance(self.ttl, StateTtlConfig):
            raise TypeError(
                f"{type(self).__name__}({self.name!r}): ttl takes a StateTtlConfig, as in "
                f"ttl=StateTtlConfig(timedelta(hours=1)), not {self.ttl!r:.60}"
            )
        if self.migrate is not None and not callable(self.migrate):
            raise TypeError(
                f"{type(self).__name__}({self.name!r}): migrate takes a function, not {self.migrate!r:.60}"
            )

    @property
    def expires(self) -> bool:
        """Whether entries have a time to live."""
        return self.ttl is not None and self.ttl.is_enabled


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key. ``default`` is what :meth:`ValueState.value` gives before the first update."""

    default: Any = None


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """A list per key; ``type`` is the type of an element."""


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor):
    """A mapping per key; ``key_type`` is the type of its keys, ``type`` that of its values."""

    key_type: Any = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, into which each added value is reduced: ``reduce(old, new) -> value``."""

    reduce: Callable[[Any, Any], Any] | ReduceFunction[Any] = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.reduce, "reduce", self.reduce)) or isinstance(self.reduce, type):
            raise TypeError(f"ReducingStateDescriptor({self.name!r}) needs reduce=, a function of two values")


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator per key; ``type`` is the type of the accumulator."""

    aggregate: AggregateFunction[Any, Any, Any] = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.aggregate, "create_accumulator") or isinstance(self.aggregate, type):
            raise TypeError(f"AggregatingStateDescriptor({self.name!r}) needs aggregate=, an AggregateFunction")


# ---- what users touch: always the state of the current key, only from the task's thread -------------------


class ValueState(ABC, Generic[T]):
    """One value."""

    @abstractmethod
    def value(self) -> T:
        """The value of the current key, or the descriptor's default."""

    @abstractmethod
    def update(self, value: T) -> None:
        """Set the value of the current key."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the value of the current key."""


class ListState(ABC, Generic[T]):
    """A list. Change it through these methods, not through what :meth:`get` returns."""

    @abstractmethod
    def get(self) -> list[T]:
        """The elements of the current key, a list of its own (empty if there are none)."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Append one element."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the list of the current key."""


class MapState(ABC, Generic[K, V]):
    """A mapping; reads and writes go to single entries."""

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The entry, or ``default``."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set one entry."""

    @abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set several entries."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry if it is there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is such an entry."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]:
        """The entries in insertion order. Changing the state ends the right to go on iterating."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """The keys of the entries."""

    @abstractmethod
    def values(self) -> Iterator[V]:
        """The values of the entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the current key has no entry."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the mapping of the current key."""


class ReducingState(ABC, Generic[T]):
    """One value into which others are reduced."""

    @abstractmethod
    def get(self) -> T | None:
        """The value of the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduce ``value`` into the state."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the value of the current key."""


class AggregatingState(ABC, Generic[IN, OUT]):
    """An accumulator with a result."""

    @abstractmethod
    def get(self) -> OUT | None:
        """The result for the current key, or None before the first :meth:`add`."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add ``value`` to the accumulator."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the accumulator of the current key."""


# ---- what a backend implements ----------------------------------------------------------------------------


class TableKind(Enum):
    """What one (key, namespace) of a table holds."""

    VALUE = "value"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class StateMeta:
    """What a snapshot says of one table, readable without the job's code.

    Attributes:
        name: the table's name.
        kind: value or map.
        serializer: name of the serializer that wrote the values.
        version: that serializer's version.
        type_name: the declared type as text, ``""`` where none was declared.
        expires: whether each value stands in a pair ``(ms since the epoch when it was last touched, value)``,
            because the state has a time to live.
        declared: the kind that was declared, for people: ``list``.
        ttl_ms: the time to live, for people.
        schema: what is in the values, with the names of their fields, as plain data; None where they are pickled.
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

    def __str__(self) -> str:
        content = self.type_name or "values of no declared type"
        lives = " with a time to live" if self.expires else ""
        written = f"serializer {self.serializer!r}, version {self.version}"
        return f"a {self.kind.value} table of {content}{lives} ({written})"


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What a descriptor means for a backend: the same for all of them.

    Attributes:
        meta: what the table's snapshots say of it.
        serializer: for the values of a VALUE table, for pairs ``(key, value)`` of a MAP table.
        hint: what the serializer is for.
        migrate: that of the descriptor.
    """

    meta: StateMeta
    serializer: Serializer
    hint: Any = None
    migrate: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> TableSchema:
        """The schema of the table for ``descriptor``."""
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
        declared_as = type(descriptor).__name__.removesuffix("StateDescriptor").lower()
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
        return cls(meta, serializer, declared, descriptor.migrate)

    def check_same(self, other: StateMeta, operator: str) -> None:
        """Check a second declaration of the table. Raises StateError if kind or type differ."""
        mine = self.meta
        if (mine.kind, mine.type_name, mine.expires) != (other.kind, other.type_name, other.expires):
            raise StateError(
                f"state {mine.name!r} of operator {operator!r} is declared twice: as {mine}, and as "
                f"{other}. Give one of them another name"
            )

    def reader_for(self, written: StateMeta, operator: str) -> Serializer:
        """The serializer to read what a snapshot holds of this table.

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
        if written.expires != new.expires or "list" in {written.declared, new.declared} - {"", new.declared}:
            return None
        layers += ("list",) if new.declared == "list" else ()
        layers += ("touched",) if new.expires else ()
        old = Form(written.serializer, written.version, written.type_name, written.schema)
        now = Form(new.serializer, new.version, new.type_name, new.schema)
        return reader_of(old, now, self.serializer, self.hint, layers, self.migrate)


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A file of a backend.

    Attributes:
        name: what the backend calls it.
        size: in bytes.
        identity: where the file never changes: a name that it shares with no other content, so that a later
            checkpoint of which it is a part, too, need not write it again. Letters, digits, ``-`` and ``.``.
    """

    name: str
    size: int
    identity: str = ""


class NativeState(ABC):
    """Keyed state at one moment as a backend's own files, which only this kind of backend reads.

    Attributes:
        format: the backend's name, and the version of what is in the files.
        key_groups: what is in them.
        files: all of them.
        properties: what else the backend must know.
    """

    format: str
    key_groups: KeyGroupRange
    files: tuple[NativeFile, ...]
    properties: Mapping[str, str]

    @abstractmethod
    def fetch(self, name: str, path: str) -> None:
        """Make a local file of one of them, which shares its content and must not be changed."""

    @abstractmethod
    def local_path(self, name: str) -> str:
        """Where one of them is, until the snapshot is released. Raises StateError if not on this machine."""


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """Keyed state at one moment, organised by key group and independent of the backend that took it.

    What is to be read may be made while it is read: from any thread, also while the backend is used, and until
    :meth:`release`. Pickled, it is what it says, by itself.

    Attributes:
        tables: one entry per table; rows refer to them by index.
        groups: per key group the rows of all tables, msgpack-encoded as written by
            :func:`sluiceway.serializers.encode_rows`. Groups without state are absent.
        native: the same as files of the backend, where it has any; then a snapshot that was read from a
            checkpoint may have no ``groups``.
        on_release: what :meth:`release` calls.
    """

    tables: tuple[StateMeta, ...]
    groups: Mapping[int, bytes]
    native: NativeState | None = None
    on_release: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """Nothing of it will be read any more: free what it holds. Harmless a second time."""
        if self.on_release is not None:
            self.on_release()

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedSnapshot, (self.tables, self.groups, self.native)


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend is given for one subtask.

    Attributes:
        operator: the operator's uid, for messages and directories.
        subtask: index of the subtask.
        key_groups: the key groups this subtask owns.
        max_parallelism: number of key groups of the job vertex.
    """

    operator: str
    subtask: int
    key_groups: KeyGroupRange
    max_parallelism: int


class StateTable(ABC):
    """One named state of one subtask. Used only from the task's thread.

    The mappings it returns are live and stay valid until :meth:`drop` of their namespace, so an operator may
    keep ``entries()``. It may bind ``entries().get`` for a batch of records, but not beyond a snapshot; nor may it
    keep a value that can be changed. An entry comes into being by assignment; the
    caller has checked the key's hash by then (:func:`sluiceway.keygroups.key_group`).
    """

    @abstractmethod
    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """For a VALUE table: the mapping from key to value in ``namespace``, live, writes go through.

        A value that was changed in place must be assigned again to be seen by the backend.
        """

    @abstractmethod
    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """For a MAP table: the mapping of one key, live, writes go through entry by entry, insertion order kept.

        Reading the mapping of a key that has none does not create state. Clearing it removes the key.
        """

    @abstractmethod
    def namespaces(self) -> Iterator[Hashable]:
        """The namespaces that hold state now."""

    @abstractmethod
    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        """The keys that have state in ``namespace`` now."""

    @abstractmethod
    def drop(self, namespace: Hashable) -> None:
        """Forget everything in ``namespace``. Mappings handed out for it are no longer valid."""


class KeyedStateBackend(ABC):
    """The keyed state of one subtask. Used only from the task's thread.

    A table for a descriptor that expires holds each value (of a MAP table: of each entry) in a pair with the
    time it was last touched; the handles over it see to that, and what works on a table's own mappings does
    so, too. The operators' own tables have no time to live.

    Attributes:
        expires_in_compaction: whether it drops by itself what has expired where ``descriptor.ttl`` has
            ``cleanup_in_compaction``.

    Call order: :meth:`restore` at most once, first; then :meth:`table` and :meth:`snapshot` as often as
    needed; :meth:`close` once, last.
    """

    expires_in_compaction: ClassVar[bool] = False

    @abstractmethod
    def table(self, descriptor: StateDescriptor) -> StateTable:
        """The table for ``descriptor``, created or found by name.

        Raises:
            StateError: a table of that name exists with another kind or type.
        """

    @abstractmethod
    def snapshot(self) -> KeyedSnapshot:
        """All state as of now. Later changes do not show in it.

        Quick: what takes long is left to whoever reads the snapshot, in a thread of its own maybe.
        """

    @abstractmethod
    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Load the own key groups out of snapshots taken by any number of subtasks, at any parallelism.

        Raises:
            StateError: called after the first :meth:`table`, or the snapshots disagree about a table.
        """

    @abstractmethod
    def close(self) -> None:
        """Free memory and files. Harmless a second time."""


class StateBackend(ABC):
    """A kind of state backend: what a plugin offers under a name."""

    @abstractmethod
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """Make the keyed backend of one subtask. Called in the task's thread, before any other call."""
