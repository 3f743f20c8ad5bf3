"""Savepoints made from others: operators and states removed, renamed, transformed or replaced, the rest copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from sluiceway.checkpoint import (
    SAVEPOINT,
    CheckpointMetadata,
    Section,
    StateReader,
    SubtaskEntry,
    VertexEntry,
    load_metadata,
    split_location,
)
from sluiceway.checkpoint.copy import copy_operator, copy_section, regrouped, without_tables
from sluiceway.checkpoint.files import join
from sluiceway.checkpoint.metadata import InFlightEntry, OperatorEntry
from sluiceway.checkpoint.native_files import with_rows
from sluiceway.checkpoint.offline_reader import Decoder, Opaque
from sluiceway.checkpoint.state_file import SectionWriter
from sluiceway.columns.state_names import kind_of_state
from sluiceway.errors import ConfigurationError, StateError, choose
from sluiceway.operators.keyed_timers import TIMERS
from sluiceway.operators.operator_state import ListMode
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.savepoint.edited_columns import EditedColumns
from sluiceway.savepoint.writer import SavepointWriter
from sluiceway.serializers import KEY_SERIALIZER
from sluiceway.state import (
    KeyedSnapshot,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTable,
)
from sluiceway.state.declared import check_of, entry_check_of
from sluiceway.util.overriding import override

__all__ = ["SavepointEditor", "edit"]

Change: TypeAlias = Callable[[Any, Any], Any]

_TIMERS: Final = "timers"
replace: Final = msgspec.structs.replace
_BROADCAST: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])


class SavepointEditor(SavepointWriter):
    """Writer of a savepoint from a checkpoint or savepoint. A context manager, as :class:`SavepointWriter`.

    The old savepoint is not changed. State that is not named is copied without being decoded.

    Attributes:
        location: path or URL of the new savepoint.
    """

    def __init__(
        self,
        old: str,
        location: str,
        max_parallelism: int | None,
        backend: str,
        allow_pickle: bool,
        manager: PluginManager,
    ) -> None:
        self._old_location = old
        place, directory = split_location(old)
        storage = manager.checkpoint_storage(place)
        self._old: CheckpointMetadata = load_metadata(storage, directory)
        self._reader = StateReader(storage, directory)
        super().__init__(location, max_parallelism, self._old.job_name, backend, manager)
        self._groups = max_parallelism
        self._allow_pickle = allow_pickle
        self._had = {operator.uid: vertex for vertex, _, operator in self._old.operators()}
        # Steps without state are known by uid, too: they can be given some.
        self._had |= {step.uid: v for v in self._old.vertices for step in v.steps if step.uid not in self._had}
        self._removed: set[str] = set()
        self._dropped: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._replaced: set[tuple[str, str]] = set()
        self._edited: dict[tuple[str, str], EditedColumns] = {}

    def remove(self, uid: str, state: str | None = None) -> None:
        """Remove an operator, or one of its states. Timers are the state ``timers``.

        Raises:
            StateError: the checkpoint is unaligned, and records were in flight to or from the operator.
            UnknownNameError: the operator or state does not exist; lists the existing ones.
        """
        self._check_open()
        self._check_known(uid)
        if state is None:
            self._refuse_in_flight(uid)
            self._removed.add(uid)
            if (backend := self._backends.pop(uid, None)) is not None:
                backend.close()
            return
        name = TIMERS.name if state == _TIMERS else state
        known = self._states_of(uid)
        if name not in known:
            raise choose("state", state, [_TIMERS if n == TIMERS.name else n for n in known], f"of step {uid!r}")
        self._drop(uid, name)

    def rename(self, uid: str, new: str) -> None:
        """Change the uid of an operator.

        Raises:
            StateError: another operator has the new uid.
            UnknownNameError: no operator has the old uid; lists the existing ones.
        """
        self._check_open()
        self._check_known(uid)
        taken = {self._names.get(old, old) for old in self._had.keys() - {uid} - self._removed} | {
            made for made in self._backends if made not in self._had
        }
        if new in taken:
            raise StateError(f"operator {uid!r} cannot be renamed: another operator has the uid {new!r}")
        self._names[uid] = new

    def transform(self, uid: str, descriptor: StateDescriptor, function: Change) -> int:
        """Replace each value of a keyed state by a function's result, and return the number of keys left.

        Args:
            uid: uid of the operator.
            descriptor: descriptor of the state. If its type differs from the saved one, values are read as a job
                would read them: see "schema evolution", ``migrate=``.
            function: called with the key and its value, list or dict. Its result replaces that; None, or an empty
                list or dict, removes it. Times of last access are kept. Pickled values are unpickled.

        Raises:
            DeclaredTypeError: a result is not of the declared type.
            IncompatibleStateError: the saved state does not fit the descriptor.
            StateError: a result is not a list or dict, for such a state.
            UnknownNameError: the operator or state does not exist; lists the existing ones.
        """
        self._check_open()
        self._check_known(uid)
        known = self._states_of(uid)
        if descriptor.name not in known:
            raise choose("state", descriptor.name, known, f"of step {uid!r}")
        self._refuse_columns(uid, descriptor.name)
        self._refuse_unkeyed(uid, descriptor.name)
        table = self._backend(uid).table(descriptor)
        self._replaced.add((uid, descriptor.name))
        is_map, is_list = isinstance(descriptor, MapStateDescriptor), isinstance(descriptor, ListStateDescriptor)
        change = _change_map if is_map else partial(_change_value, as_list=is_list)
        function = _checked(uid, descriptor, function)
        count = 0
        for namespace in list(table.namespaces()):
            for key in list(table.keys(namespace)):
                count += change(table, key, namespace, function, expires=descriptor.expires)
        return count

    # ---- inside --------------------------------------------------------------------------------------------

    @override
    def _put_columns(self, uid: str, state: str, data: Any, *, chosen: bool) -> int:
        self._check_known(uid)
        known = self._states_of(uid)
        if state not in known:
            raise choose("state", state, known, f"of step {uid!r}")
        kind = self._kind_in_columns(uid, state)
        if kind not in ("aggregates", "rows"):
            raise StateError(
                f"state {state!r} of operator {uid!r} "
                + (
                    "is that of the progress of a step in columns, and cannot be changed"
                    if kind
                    else "is not in columns: "
                    "give put() its descriptor, such as ValueStateDescriptor, in place of its name"
                )
            )
        if chosen:
            raise ConfigurationError(
                f"the columns of state {state!r} are named as read() names them: key= and the like are for states "
                "with a descriptor"
            )
        edited = self._edited.get((uid, state))
        if edited is None:
            edited = self._edited[uid, state] = EditedColumns(uid, state, kind, self._groups_of(uid))
            with self._snapshots(uid) as snapshots:
                edited.take_form(snapshots)
            self._replaced.add((uid, state))
            self._drop(uid, state)
        count = edited.add(data)
        edited.write(self._backend(uid), {name: each for (of, name), each in self._edited.items() if of == uid})
        return count

    @contextmanager
    def _snapshots(self, uid: str) -> Iterator[list[KeyedSnapshot]]:
        kept = [self._keyed(*entries) for entries in self._old.operators(uid)]
        snapshots = [snapshot for snapshot in kept if snapshot is not None]
        try:
            yield snapshots
        finally:
            for snapshot in snapshots:
                snapshot.release()

    def _check_known(self, uid: str) -> None:
        known = self._had.keys() - self._removed
        if uid not in known:
            raise choose("step with the uid", uid, known, "in the checkpoint")

    def _states_of(self, uid: str) -> list[str]:
        found: dict[str, None] = {}
        for _, _, operator in self._old.operators(uid):
            if operator.keyed is not None:
                found |= dict.fromkeys(table.name for table in operator.keyed.tables)
            found |= dict.fromkeys(kept.name for kept in operator.lists)
            if operator.broadcast is not None:
                states = self._reader.decoded(operator.broadcast, _BROADCAST)
                found |= dict.fromkeys(name for name, _ in states)
        return list(found)

    def _groups_of(self, uid: str) -> int:
        if self._groups is not None:
            return self._groups
        vertex = self._had.get(uid)
        if vertex is not None:
            return vertex.max_parallelism
        known = {vertex.max_parallelism for vertex in self._old.vertices}
        return max(known, default=self._max_parallelism)

    def _is_new(self, uid: str) -> bool:
        # A removed operator may be given state again, as a new one.
        return uid in self._removed or not any(self._old.operators(uid))

    @override
    def _new_name(self, uid: str) -> str:
        # A removed one's new name went with it.
        return uid if uid in self._removed else self._names.get(uid, uid)

    def _refuse_columns(self, uid: str, state: str) -> None:
        """Raise StateError if a state is that of a step in columns."""
        if self._kind_in_columns(uid, state):
            raise StateError(
                f"state {state!r} of operator {uid!r} is held in columns, many keys to a block, and cannot be "
                f"changed value by value. Change the table that read() returns, and give it to put({uid!r}, "
                f"{state!r}, table)"
            )

    def _refuse_unkeyed(self, uid: str, state: str) -> None:
        """Raise StateError if a state that was saved is not kept by key."""
        gone = state in self._dropped.get(uid, ())
        if gone or self._is_new(uid) or state not in self._states_of(uid):
            return
        keyed = (o.keyed for _, _, o in self._old.operators(uid) if o.keyed is not None)
        if all(state != table.name for entry in keyed for table in entry.tables):
            raise StateError(
                f"state {state!r} of operator {uid!r} is not kept by key, and cannot be changed: it is copied, or "
                f"removed with remove({uid!r}, {state!r})"
            )

    def _refuse_in_flight(self, uid: str) -> None:
        """Raise StateError if records were in flight to or from an operator."""
        entries = (entry for subtask in self._old.subtasks() for entry in subtask.in_flight)
        entry = next((entry for entry in entries if uid in (entry.source, entry.target)), None)
        if entry is not None:
            raise StateError(
                f"operator {uid!r} cannot be removed: {self._old_location} is an unaligned checkpoint with "
                f"records in flight from {entry.source!r} to {entry.target!r}, which would be lost. Edit a "
                "savepoint of the job or an aligned checkpoint: these have no records in flight"
            )

    def _refuse_raw_keyed(self) -> None:
        """Raise StateError if an operator has raw keyed state for another number of key groups."""
        for vertex, _, operator in self._old.operators():
            if operator.uid in self._removed or vertex.max_parallelism == self._groups:
                continue
            for kept in operator.lists:
                if kept.mode == ListMode.RAW_KEYED.value and kept.name not in self._dropped.get(operator.uid, ()):
                    raise StateError(
                        f"the {kept.name} of operator {operator.uid!r} cannot be divided into {self._groups} key "
                        "groups: its function has written it by key group, in a form of its own. Keep the number "
                        f"of key groups, {vertex.max_parallelism}, or remove({operator.uid!r}, {kept.name!r})"
                    )

    def _kind_in_columns(self, uid: str, state: str) -> str:
        vertex = self._had.get(uid)
        steps = () if vertex is None or uid in self._removed else vertex.steps
        return kind_of_state(next((step.kind for step in steps if step.uid == uid), ""), state)

    def _begin(self, uid: str, state: str) -> None:
        """Drop the old rows of a state before its first new ones."""
        old = next((old for old, new in self._names.items() if new == uid and old not in self._removed), uid)
        if old != uid and uid not in self._had.keys() - self._removed:
            raise StateError(
                f"operator {old!r} is called {uid!r} only in the new savepoint: give put() its old uid, {old!r}"
            )
        self._refuse_columns(uid, state)
        self._refuse_unkeyed(uid, state)
        if (uid, state) not in self._replaced:
            self._replaced.add((uid, state))
            if not self._is_new(uid):
                self._drop(uid, state)

    def _drop(self, uid: str, state: str) -> None:
        self._dropped.setdefault(uid, set()).add(state)
        backend = self._backends.pop(uid, None)
        # The backend has loaded the dropped state: move the other tables to a new one.
        if backend is not None:
            snapshot = backend.snapshot()
            self._backends[uid] = made = self._make_backend(uid)
            made.restore([without_tables(snapshot, (state,))])
            snapshot.release()
            backend.close()

    def _backend(self, uid: str) -> KeyedStateBackend:
        fresh = uid not in self._backends
        backend = super()._backend(uid)
        if fresh and not self._is_new(uid):
            with self._snapshots(uid) as snapshots:
                backend.restore(snapshots if self._groups is None else [self._regrouped(uid, snapshots)])
        return backend

    def _regrouped(self, uid: str, snapshots: list[KeyedSnapshot]) -> KeyedSnapshot:
        def load_key(data: bytes) -> Any:
            if self._allow_pickle:
                return KEY_SERIALIZER.loads(data)
            found = decode.key(data)
            if isinstance(found, Opaque):
                what = f" of class {found.type_name}" if found.type_name else ""
                raise StateError(
                    f"operator {uid!r} has a key{what}, which has to be unpickled to find its key group: "
                    "edit(..., allow_pickle=True) does that, and needs the class"
                )
            return found

        decode = Decoder(trusted=False)
        assert self._groups is not None
        return regrouped(snapshots, self._groups, load_key)

    def _keyed(self, vertex: VertexEntry, subtask: SubtaskEntry, operator: OperatorEntry) -> KeyedSnapshot | None:
        if operator.keyed is None:
            return None
        uid = operator.uid
        snapshot = self._reader.keyed(uid, operator.keyed)
        rows = with_rows(snapshot, self._open_backend, uid, subtask.index, vertex.max_parallelism)
        return without_tables(rows, self._dropped.get(uid, ()))

    def _metadata(self) -> CheckpointMetadata:
        """Write copied, changed and new state, and return the metadata."""
        # Another number of key groups moves every key, also of operators that were not named.
        if self._groups is not None:
            for uid in {o.uid for _, _, o in self._old.operators() if o.keyed is not None} - self._removed:
                if any(self._kind_in_columns(uid, state) for state in self._states_of(uid)):
                    raise StateError(
                        f"the state of operator {uid!r} cannot be divided into {self._groups} key groups: it is "
                        "held in columns, in blocks by key group. Keep the number of key groups, "
                        f"{self._had[uid].max_parallelism}, or remove({uid!r})"
                    )
                self._backend(uid)
            self._refuse_raw_keyed()
        made = super()._metadata()
        done: set[str] = set()
        kept = [self._copied(vertex, done) for vertex in self._old.vertices]
        return replace(
            self._old,
            kind=SAVEPOINT,
            triggered_ms=made.triggered_ms,
            completed_ms=made.completed_ms,
            written_by=made.written_by,
            vertices=(*(vertex for vertex in kept if vertex.steps or vertex.subtasks), *made.vertices),
            enumerators=self._copied_enumerators(),
        )

    def _copied(self, vertex: VertexEntry, done: set[str]) -> VertexEntry:
        steps = tuple(
            replace(step, uid=self._names.get(step.uid, step.uid))
            for step in vertex.steps
            if step.uid not in self._removed
        )
        subtasks = tuple(self._subtask(self._copying(vertex, subtask, done)) for subtask in vertex.subtasks)
        # A vertex whose own uid is removed gets that of the first step that is left.
        uid = vertex.uid if vertex.uid not in self._removed or not steps else steps[0].uid
        uid, groups = self._names.get(uid, uid), self._groups or vertex.max_parallelism
        return replace(vertex, uid=uid, max_parallelism=groups, steps=steps, subtasks=subtasks)

    def _copying(
        self, vertex: VertexEntry, subtask: SubtaskEntry, done: set[str]
    ) -> Callable[[SectionWriter], Generator[None, None, SubtaskEntry]]:
        def content(writer: SectionWriter) -> Generator[None, None, SubtaskEntry]:
            entries = []
            for operator in subtask.operators:
                uid = operator.uid
                if uid in self._removed:
                    continue
                changed = uid in self._backends
                keyed = None if changed else self._keyed(vertex, subtask, operator)
                try:
                    dropped = self._dropped.get(uid, ())
                    entry = yield from copy_operator(writer, self._reader, operator, keyed, dropped)
                finally:
                    if keyed is not None:
                        keyed.release()
                if changed and uid not in done:  # changed state of all subtasks goes to the first one's file
                    done.add(uid)
                    entry = replace(entry, keyed=(yield from self._write_new(writer, uid)))
                entries.append(replace(entry, uid=self._names.get(uid, uid)))
            attached = {
                name: writer.add(self._reader.bytes_of(section)) for name, section in subtask.attachments.items()
            }
            yield
            in_flight = []
            for part in subtask.in_flight:
                in_flight.append(self._copied_in_flight(writer, part))
                yield
            return replace(subtask, operators=tuple(entries), attachments=attached, in_flight=tuple(in_flight))

        return content

    def _copied_in_flight(self, writer: SectionWriter, part: InFlightEntry) -> InFlightEntry:
        # A restored job finds the records by the uids of the edge. The old number of key groups stays: by it, the
        # job sees that it has to deal the records out anew.
        source, target = (self._names.get(uid, uid) for uid in (part.source, part.target))
        elements = copy_section(writer, self._reader, part.elements)
        return replace(part, source=source, target=target, elements=elements)

    def _copied_enumerators(self) -> dict[str, Section]:
        left = {uid: section for uid, section in self._old.enumerators.items() if uid not in self._removed}
        if not left:
            return {}
        file = "enumerators.state"
        self._files.append(join(self._directory, file))
        writer = SectionWriter(self._storage, self._directory, file)
        found: dict[str, Section] = {}

        def content() -> Iterator[None]:
            for uid, section in left.items():
                copied = copy_section(writer, self._reader, section)
                assert copied is not None
                found[self._names.get(uid, uid)] = copied
                yield

        writer.write(content)
        return found


def _checked(uid: str, descriptor: StateDescriptor, function: Change) -> Change:
    """Return a function whose results are what the state may hold, as its handle in a job checks it."""
    check: Any
    if isinstance(descriptor, MapStateDescriptor):
        make: Any = dict
        check = entry_check_of(descriptor)
    else:
        make = list if isinstance(descriptor, ListStateDescriptor) else None
        check = check_of(descriptor)

    def checked(key: Any, held: Any) -> Any:
        made = function(key, held)
        if made is None:
            return None
        if make is not None:
            try:
                made = make(made)
            except (TypeError, ValueError):
                raise StateError(
                    f"state {descriptor.name!r} of operator {uid!r} cannot be transformed: the function returned "
                    f"{made!r:.80} for key {key!r:.80}. Return a {make.__name__}, or None to remove the key"
                ) from None
        if check is not None:
            for one in _as_arguments(made, make):
                check(*one)
        return made

    return checked


def _as_arguments(made: Any, make: type | None) -> Iterable[tuple[Any, ...]]:
    """Return the arguments of the checks of a value, of the elements of a list, or of the entries of a map."""
    if make is dict:
        return made.items()  # type: ignore[no-any-return]
    return ((made,),) if make is None else ((element,) for element in made)


def _change_value(
    table: StateTable, key: Any, namespace: Hashable, function: Change, *, as_list: bool, expires: bool
) -> bool:
    """Change the value of one key. Return whether the key has state left."""
    entries = table.entries(namespace)
    held = entries[key]
    if not expires:
        made = function(key, held)
    elif as_list:
        latest = max((at for at, _ in held), default=0)
        made = function(key, [value for _, value in held])
        times = [at for at, _ in held]
        if made is not None:
            # Elements beyond the old length get the latest access time of the old ones.
            made = list(zip([*times, *[latest] * len(made)], made, strict=False))
    else:
        made = function(key, held[1])
        made = None if made is None else (held[0], made)
    if made is None or (as_list and not made):
        del entries[key]
        return False
    entries[key] = made
    return True


def _change_map(table: StateTable, key: Any, namespace: Hashable, function: Change, *, expires: bool) -> bool:
    mapping = table.mapping(key, namespace)
    held = dict(mapping)
    made = function(key, {name: value[1] for name, value in held.items()} if expires else dict(held))
    mapping.clear()
    if not made:
        return False
    if expires:
        latest = max((at for at, _ in held.values()), default=0)
        made = {name: (held[name][0] if name in held else latest, value) for name, value in made.items()}
    mapping.update(made)
    return True


def edit(
    old: str | os.PathLike[str],
    location: str | os.PathLike[str],
    *,
    max_parallelism: int | None = None,
    backend: str = "memory",
    allow_pickle: bool = False,
) -> SavepointEditor:
    """Write a savepoint from a checkpoint or savepoint, which is not changed.

    Example::

        with sluiceway.savepoint.edit("savepoints/first", "savepoints/second") as savepoint:
            savepoint.remove("visits")
            savepoint.put("counted", sw.ValueStateDescriptor("count", int), table)

    The first :meth:`put <SavepointWriter.put>` for a state replaces it. That of a step in columns is named, and
    its rows have the columns and types that :func:`read` returns::

        table = sluiceway.savepoint.read("savepoints/first")["sums"]["slices in columns"].to_arrow()
        with sluiceway.savepoint.edit("savepoints/first", "savepoints/second") as savepoint:
            savepoint.put("sums", "slices in columns", table.slice(1))

    :meth:`~SavepointEditor.transform`, :meth:`~SavepointEditor.remove` and :meth:`~SavepointEditor.rename` change
    other things.

    Args:
        old: path or URL of the checkpoint.
        location: path or URL of the new savepoint's directory, which must not have a checkpoint.
        max_parallelism: new number of key groups of all keyed state; None: unchanged. Raw keyed state and state of
            steps in columns cannot be divided into another number.
        backend: state backend that holds changed state until it is written: ``rocksdb`` if it exceeds memory.
        allow_pickle: whether to unpickle keys where a new number of key groups requires it; that can run any code.

    Raises:
        CheckpointError: the old directory has no checkpoint, or the new one has.
        ConfigurationError: max_parallelism is out of range.
        MissingExtraError: the library of a backend is not installed.
    """
    return SavepointEditor(
        os.fspath(old), os.fspath(location), max_parallelism, backend, allow_pickle, default_manager()
    )
