"""Contract of state backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluiceway.keygroups import KeyGroupRange
from sluiceway.state.descriptors import VOID_NAMESPACE, StateDescriptor
from sluiceway.state.tables import StateMeta

__all__ = [
    "BackendContext",
    "IncrementalRows",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "NativeFile",
    "NativeState",
    "RowsOnDemand",
    "SharedRows",
    "StateBackend",
    "StateTable",
]


@dataclass(frozen=True, slots=True)
class NativeFile:
    """File of a backend.

    Attributes:
        name: the backend's name for it.
        size: in bytes.
        identity: where the file never changes: a name that it shares with no other content, so that a later
            checkpoint that includes it need not write it again. Letters, digits, ``-`` and ``.``.
    """

    name: str
    size: int
    identity: str = ""


class NativeState(ABC):
    """Keyed state at one moment as a backend's own files, which only this kind of backend reads.

    Attributes:
        format: the backend's name, and the version of the files' format.
        key_groups: the key groups in the files.
        files: all files.
        properties: further data for the backend.
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
        """Return the path of a file until the snapshot is released. Raises StateError on another machine."""


class RowsOnDemand(Mapping[int, bytes]):
    """Rows of a snapshot that only one subtask restores, which releases them afterwards."""

    @abstractmethod
    def release(self) -> None:
        """Free the rows, which are not read any more. Harmless a second time."""


class SharedRows(ABC):
    """Rows of a snapshot that later snapshots of the same backend may have as well, unchanged.

    Rows that have changed get another identity. The snapshots that have an identity follow one another: once one
    of them lacks it, no later one has it. A checkpoint may therefore refer to rows that any complete checkpoint of
    the same backend has stored, however long ago: every checkpoint between the two refers to the same file.

    Attributes:
        identity: a name that the rows share with no other content, as that of a :class:`NativeFile`.
    """

    identity: str

    @property
    @abstractmethod
    def key_groups(self) -> Collection[int]:
        """Key groups that have rows."""

    @abstractmethod
    def rows(self, group: int) -> bytes:
        """Return the rows of a key group, as :attr:`KeyedSnapshot.groups` has them: the same bytes each time.

        From any thread, until the snapshot is released.
        """


class IncrementalRows(Mapping[int, bytes]):
    """Rows of a snapshot by key group, which can be stored in parts, of which some may be stored already.

    Read as a mapping it has all rows. Who stores it reads either that, or all parts. Pickled, it becomes a dict.

    Args:
        whole: all rows, made when they are read.
        private: rows that belong to this snapshot alone; made when they are read.
        shared: all other rows.
    """

    def __init__(
        self, whole: Mapping[int, bytes], private: Mapping[int, bytes], shared: Sequence[SharedRows]
    ) -> None:
        self._whole = whole
        self.private = private
        self.shared = tuple(shared)

    def __getitem__(self, group: int) -> bytes:
        return self._whole[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self._whole),)


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """Keyed state at one moment, organised by key group and independent of the backend that took it.

    Its content may be made while it is read: from any thread, also while the backend is used, and until
    :meth:`release`. Pickled, it holds its content itself.

    Attributes:
        tables: one entry per table; rows refer to them by index.
        groups: per key group the rows of all tables, msgpack-encoded as written by
            :func:`sluiceway.serializers.encode_rows`. Groups without state are absent. An
            :class:`IncrementalRows` if a checkpoint may refer to rows that an earlier one has stored.
        native: the same as files of the backend, where it has any; then a snapshot that was read from a
            checkpoint may have no ``groups``.
        on_release: called by :meth:`release`.
    """

    tables: tuple[StateMeta, ...]
    groups: Mapping[int, bytes]
    native: NativeState | None = None
    on_release: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    def release(self) -> None:
        """Free the resources of the snapshot, which is not read any more. Harmless a second time."""
        if self.on_release is not None:
            self.on_release()

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedSnapshot, (self.tables, self.groups, self.native)


@dataclass(frozen=True, slots=True)
class BackendContext:
    """Context of a backend for one subtask.

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
    """Named state of one subtask. Used only from the task's thread.

    The mappings it returns are live and stay valid until :meth:`drop` of their namespace, so an operator may
    keep ``entries()``. It may bind ``entries().get`` for a batch of records, but not beyond a snapshot; nor may it
    keep a value that can be changed. Assignment creates an entry; the caller has checked the key's hash by then
    (:func:`sluiceway.keygroups.key_group`).

    Equal keys of different types, ``1``, ``1.0`` and ``True``, are one key. None is a value like others. Reading
    creates no state: neither a key, nor an empty mapping, nor a namespace. Using the wrong kind,
    :meth:`entries` of a MAP table or :meth:`mapping` of a VALUE table, may raise StateError.

    The keys of a namespace may be in another order each time, above all after a snapshot: a backend
    returns them as it stores them.

    Attributes:
        reads_ahead: True if it pays to compute the keys of a batch for :meth:`working`.
        keeps_objects: True if a table stores the very objects that were assigned to it, and later snapshots
            show changes made to them in place. Otherwise the handles assign what they have
            returned again at the end of the batch, if it can be changed.
        working_memory: bytes that an operator may hold of the table's state in a form of its own, before it writes
            it to the table and forgets it; None: the table is in memory, too, and nothing would be freed.
    """

    reads_ahead: ClassVar[bool] = False
    keeps_objects: ClassVar[bool] = False
    working_memory: int | None = None

    @abstractmethod
    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """Return the live mapping from key to value in ``namespace`` of a VALUE table; writes go through.

        A value that was changed in place must be assigned again to be seen by the backend.
        """

    def working(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """Return :meth:`entries` of a VALUE table, for a loop over a batch that uses these keys alone.

        A backend that stores state elsewhere reads what it lacks of them all at once; one that records changes
        records all of them. The mapping is valid until the table is used in any other way; until then nothing is
        assigned by mappings that were returned before. The values of keys that are not assigned stay as they are.

        Args:
            keys: in any order, also more than once.
            namespace: the namespace.
        """
        return self.entries(namespace)

    def read(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        """Return the values of those of some keys of a VALUE table that there are, by key, for reading alone.

        For a caller that holds what it reads in a form of its own: no backend holds it a second time.

        Args:
            keys: different ones.
            namespace: the namespace.
        """
        entries = self.entries(namespace)
        found = ((key, entries.get(key, entries)) for key in keys)
        return {key: value for key, value in found if value is not entries}

    def remove(self, keys: Iterable[Any], namespace: Hashable = VOID_NAMESPACE) -> None:
        """Remove keys of a VALUE table, whether there are such or not; a backend need not look for them.

        Args:
            keys: the keys.
            namespace: the namespace.
        """
        entries = self.entries(namespace)
        for key in keys:
            entries.pop(key, None)

    def set_aside(self, make: Callable[[], Mapping[Any, Any]]) -> Callable[[], None]:
        """Have the next snapshot hold entries in the void namespace of a VALUE table that is otherwise empty.

        Args:
            make: returns the entries. Called now, or when the snapshot is read: in another thread, or not at all.

        Returns:
            a function to call when the snapshot has been taken.
        """
        entries = self.entries()
        entries.update(make())
        return entries.clear

    @abstractmethod
    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """Return the live mapping of one key of a MAP table; writes go through, insertion order is kept.

        Reading the mapping of a key that has none does not create state. Clearing it removes the key.
        """

    @abstractmethod
    def namespaces(self) -> Iterator[Hashable]:
        """Yield the namespaces that hold state now: none that is empty."""

    @abstractmethod
    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        """Yield the keys that have state in ``namespace`` now. The table may be changed meanwhile."""

    def visit_keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        """Yield at least the keys that have state now and at the end, for a visit that may take hours.

        Other than with :meth:`keys`, a key may come twice, or have no state. A backend that stores state elsewhere
        holds only a few of the keys at a time. After :meth:`drop` of the namespace no more may come.
        """
        return self.keys(namespace)

    @abstractmethod
    def drop(self, namespace: Hashable) -> None:
        """Remove all state in ``namespace``. Mappings returned for it are no longer valid.

        The namespace may be used again. Others are not affected; dropping an empty one is no error.
        """


class KeyedStateBackend(ABC):
    """Keyed state of one subtask. Used only from the task's thread.

    A table for a descriptor that expires holds each value (of a MAP table: of each entry) in a pair with the
    time of its last access; the handles maintain it, and code that works on a table's own mappings must do
    so, too. The operators' own tables have no time to live.

    Attributes:
        expires_in_compaction: True if the backend drops expired state by itself where ``descriptor.ttl`` has
            ``cleanup_in_compaction``.

    Call order: :meth:`restore` at most once, first; then :meth:`table` and :meth:`snapshot` as often as
    needed; :meth:`close` once, last.
    """

    expires_in_compaction: ClassVar[bool] = False

    @abstractmethod
    def table(self, descriptor: StateDescriptor) -> StateTable:
        """Return the table for ``descriptor``, created or found by name: the same state each time.

        It includes what was restored under that name, read as :meth:`TableSchema.reader_for
        <sluiceway.state.TableSchema.reader_for>` says; entries of a mapping keep their order.

        Raises:
            StateError: a table of that name exists with another kind, type or time to live; or was restored so, or
                with a serializer or version that is not known. Names the state and both (``check_same`` and
                ``reader_for`` of a :class:`~sluiceway.state.TableSchema` do). Also if a restored value cannot
                be decoded.
            CorruptStreamError: a restored row is of the other kind: one value in a MAP table, a list in a VALUE
                table.
        """

    @abstractmethod
    def snapshot(self) -> KeyedSnapshot:
        """Return all state as of now. Later changes do not affect it, and it changes nothing, even if unread.

        Quick: slow work is left to the reader of the snapshot, which may be in another thread, while the
        state changes, or after :meth:`close`. Tables that were restored and never asked for are part of it, others
        without state add no groups. Snapshots may overlap.

        Raises:
            SerializationError: a value cannot be written; names state and key. Here, at its assignment, or when
                the snapshot is read.
            UnstableKeyError: a key has no stable hash; likewise.
            StateError: a key belongs to a key group of another subtask; likewise.
        """

    @abstractmethod
    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Load the own key groups out of snapshots taken by any number of subtasks, at any parallelism.

        Other key groups are ignored. The snapshots are not read after this returns, unless the groups are
        kept as they are.

        Raises:
            StateError: called a second time, or after the first :meth:`table`; the snapshots disagree about a
                table (names it), a backend may take forms of one that differ in the schema of a type; or two of
                them have the same of the own key groups.
            CorruptStreamError: a group is no rows, or damaged, as :func:`sluiceway.serializers.decode_rows` tells;
                or a row refers to a table that its snapshot does not have. At the latest by :meth:`table`.
        """

    @abstractmethod
    def close(self) -> None:
        """Free memory and files. Harmless a second time. Snapshots stay good until they are released."""


class StateBackend(ABC):
    """Kind of state backend, which a plugin offers under a name."""

    @abstractmethod
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """Create the keyed backend of one subtask. Called in the task's thread, before any other call.

        Backends of different operators, or subtasks, share nothing: closing one does not affect the others.
        """
