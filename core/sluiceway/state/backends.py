"""What a state backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluiceway.keygroups import KeyGroupRange
from sluiceway.state.descriptors import VOID_NAMESPACE, StateDescriptor
from sluiceway.state.tables import StateMeta

__all__ = [
    "BackendContext",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "NativeFile",
    "NativeState",
    "RowsOnDemand",
    "StateBackend",
    "StateTable",
]


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


class RowsOnDemand(Mapping[int, bytes]):
    """The ``groups`` of a snapshot that one subtask alone is restored from: it frees them when it has been."""

    @abstractmethod
    def release(self) -> None:
        """Nothing of it will be read any more. Harmless a second time."""


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

    Equal keys of different types, ``1``, ``1.0`` and ``True``, are one key. None is a value like others. Reading
    makes no state: neither a key, nor an empty mapping, nor a namespace. Asking for the wrong kind,
    :meth:`entries` of a MAP table or :meth:`mapping` of a VALUE table, may be refused with StateError.

    The keys of a namespace may come in another order each time, above all when a snapshot lies between: a backend
    gives them as it has them at hand.

    Attributes:
        reads_ahead: whether it is worth while to find out the keys of a batch for :meth:`working`.
        keeps_objects: whether a table holds the very objects that were assigned to it, and all snapshots to come
            show what was changed in them in place. Where that is not so, False, the handles assign what they have
            handed out again at the end of the batch, if it can be changed.
    """

    reads_ahead: ClassVar[bool] = False
    keeps_objects: ClassVar[bool] = False

    @abstractmethod
    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """For a VALUE table: the mapping from key to value in ``namespace``, live, writes go through.

        A value that was changed in place must be assigned again to be seen by the backend.
        """

    def working(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """For a VALUE table: :meth:`entries`, for a loop over a batch that looks up and assigns these keys alone.

        A backend that keeps state elsewhere gets what it lacks of them all at once. The mapping is good until the
        table is used in any other way. The values of keys that are not assigned stay as they are.

        Args:
            keys: in any order, also more than once.
            namespace: where.
        """
        return self.entries(namespace)

    def set_aside(self, make: Callable[[], Mapping[Any, Any]]) -> Callable[[], None]:
        """For a VALUE table that is empty but in snapshots: have the next one hold entries in the void namespace.

        Args:
            make: gives the entries. Called now, or when the snapshot is read: in another thread, maybe not at all.

        Returns:
            what is to be called when the snapshot has been taken.
        """
        entries = self.entries()
        entries.update(make())
        return entries.clear

    @abstractmethod
    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        """For a MAP table: the mapping of one key, live, writes go through entry by entry, insertion order kept.

        Reading the mapping of a key that has none does not create state. Clearing it removes the key.
        """

    @abstractmethod
    def namespaces(self) -> Iterator[Hashable]:
        """The namespaces that hold state now: none that is empty."""

    @abstractmethod
    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        """The keys that have state in ``namespace`` now. The table may be changed during a walk over them."""

    @abstractmethod
    def drop(self, namespace: Hashable) -> None:
        """Forget everything in ``namespace``. Mappings handed out for it are no longer valid.

        It may be used again. Other namespaces stay; one that holds nothing is no error.
        """


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
        """The table for ``descriptor``, created or found by name: the same state each time.

        What was restored under that name is in it, read as :meth:`TableSchema.reader_for
        <sluiceway.state.TableSchema.reader_for>` says; an entry of a mapping is where it was in its order.

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
        """All state as of now. Later changes do not show in it, and it changes nothing, also if nobody reads it.

        Quick: what takes long is left to whoever reads the snapshot, in a thread of its own maybe, while the
        state changes, or after :meth:`close`. Tables that were restored and never asked for are part of it, others
        without state add no groups. Snapshots may overlap.

        Raises:
            SerializationError: a value cannot be written; names state and key. Here, at its assignment, or when
                the snapshot is read.
            UnstableKeyError: so with a key that has no stable hash.
            StateError: so with a key of a key group that is another subtask's.
        """

    @abstractmethod
    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Load the own key groups out of snapshots taken by any number of subtasks, at any parallelism.

        Key groups of others are left alone. The snapshots are not read after this returns, unless the groups are
        kept as they are.

        Raises:
            StateError: called a second time, or after the first :meth:`table`; the snapshots disagree about a
                table (names it); or two of them have the same of the own key groups.
            CorruptStreamError: a group is no rows, or damaged, as :func:`sluiceway.serializers.decode_rows` tells;
                or a row refers to a table that its snapshot does not have. At the latest by :meth:`table`.
        """

    @abstractmethod
    def close(self) -> None:
        """Free memory and files. Harmless a second time. Snapshots stay good until they are released."""


class StateBackend(ABC):
    """A kind of state backend: what a plugin offers under a name."""

    @abstractmethod
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """Make the keyed backend of one subtask. Called in the task's thread, before any other call.

        Backends of different operators, or subtasks, share nothing: closing one leaves the others as they are.
        """
