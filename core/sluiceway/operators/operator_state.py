"""Operator state: the lists of a subtask, their snapshots, and their redistribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sluiceway.errors import IncompatibleStateError, MisusedStateError, SerializationError, StateError
from sluiceway.functions import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
    RuntimeContext,
)
from sluiceway.functions.life import note_opened
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators.list_snapshot import ListMode, ListSnapshot
from sluiceway.operators.raw_state import RawStates
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.record_errors import record_loop
from sluiceway.serializers import serializer_for
from sluiceway.serializers.evolution import Form, IncompatibleSchemaError, reader_of, schema_of
from sluiceway.state import ListState, ListStateDescriptor
from sluiceway.state.declared import Check, check_of
from sluiceway.types import is_known, type_name

__all__ = ["FunctionStates", "ListMode", "ListSnapshot", "SubtaskLists", "share_of_lists"]


_RAW: Final = (ListMode.RAW, ListMode.RAW_KEYED)


def share_of_lists(old: Iterable[ListSnapshot], subtask: int, parallelism: int) -> list[ListSnapshot]:
    """Return a subtask's share of the lists of all earlier subtasks.

    With the same parallelism as before, each subtask gets its own again; otherwise elements are distributed in
    turn.

    Args:
        old: the lists of all earlier subtasks.
        subtask: index of the subtask.
        parallelism: the number of subtasks now.
    """
    # Raw state has fixed names, which a list of the user's may have as well.
    by_name: dict[tuple[str, bool], list[ListSnapshot]] = {}
    for kept in sorted(old, key=lambda kept: kept.subtask):
        by_name.setdefault((kept.name, kept.mode in _RAW), []).append(kept)
    share = []
    for parts in by_name.values():
        elements = tuple(element for part in parts for element in part.elements)
        # Union lists and streams of key groups are left whole: every subtask takes its part itself.
        if parts[0].mode in (ListMode.SPLIT, ListMode.RAW):
            if parts[0].parallelism == parallelism:
                elements = tuple(e for part in parts if part.subtask == subtask for e in part.elements)
            else:
                elements = elements[subtask::parallelism]
        share.append(replace(parts[0], subtask=subtask, parallelism=parallelism, elements=elements))
    return share


class _ListHandle(ListState[Any]):
    """List state over a plain list."""

    def __init__(self, values: list[Any], check: Check | None) -> None:
        self.values = values
        self._check = check

    def get(self) -> list[Any]:
        return list(self.values)

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        self.values.extend(self._checked(values))

    def update(self, values: Iterable[Any]) -> None:
        self.values[:] = self._checked(values)

    def _checked(self, values: Iterable[Any]) -> list[Any]:
        values = list(values)
        if self._check is not None:
            for value in values:
                self._check(value)
        return values

    def clear(self) -> None:
        self.values.clear()


class SubtaskLists(OperatorStateStore):
    """Lists of one step in one subtask.

    Args:
        operator: uid of the step, for messages.
        subtask: index of the subtask.
        parallelism: parallelism of the step.
        restored: the subtask's share of the saved lists.
    """

    def __init__(
        self, operator: str, subtask: int, parallelism: int, restored: Iterable[ListSnapshot] = ()
    ) -> None:
        self._operator = operator
        self._subtask = subtask
        self._parallelism = parallelism
        self._restored = {kept.name: kept for kept in restored}
        self._lists: dict[str, tuple[ListMode, ListStateDescriptor, _ListHandle]] = {}

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Return a list whose elements are split among the subtasks on restore."""
        return self._list(descriptor, ListMode.SPLIT)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Return a list that every subtask receives in full on restore."""
        return self._list(descriptor, ListMode.UNION)

    def snapshot(self) -> tuple[ListSnapshot, ...]:
        """Return the current lists, with serialized elements."""
        taken = []
        for mode, descriptor, handle in self._lists.values():
            empty = self._empty(descriptor, mode)
            dumps = serializer_for(descriptor.type).dumps
            try:
                taken.append(replace(empty, elements=tuple(map(dumps, handle.values))))
            except SerializationError as error:
                raise SerializationError(
                    f"operator state {descriptor.name!r} of operator {self._operator!r}: {error}"
                ) from error
        for kept in self._restored.values():
            # A list that no function has declared yet is kept; of a union list, subtask 0 keeps the only copy.
            if kept.mode is ListMode.SPLIT or self._subtask == 0:
                taken.append(kept)
        return tuple(taken)

    def _list(self, descriptor: ListStateDescriptor, mode: ListMode) -> ListState[Any]:
        if not isinstance(descriptor, ListStateDescriptor):
            raise MisusedStateError(
                f"a {mode.value} is declared by a ListStateDescriptor, not by {type(descriptor).__name__}"
            )
        if descriptor.ttl is not None:
            raise MisusedStateError(
                f"operator state {descriptor.name!r} of operator {self._operator!r} cannot have a time to live: "
                "only keyed state expires"
            )
        if descriptor.migrate is not None and schema_of(serializer_for(descriptor.type), descriptor.type) is None:
            raise MisusedStateError(
                f"operator state {descriptor.name!r} of operator {self._operator!r} has migrate=, and no type "
                "whose fields are saved: declare type="
            )
        name, declared = descriptor.name, self._empty(descriptor, mode)
        if name in self._lists:
            known = self._lists[name]
            if self._empty(known[1], known[0]) != declared:
                raise MisusedStateError(
                    f"operator state {name!r} of operator {self._operator!r} is declared twice: as "
                    f"{self._empty(known[1], known[0])}, and as {declared}. Give one of them another name"
                )
            return known[2]
        handle = _ListHandle(self._load(descriptor, declared), check_of(descriptor))
        self._lists[name] = mode, descriptor, handle
        # From now on the handle has these elements, and the snapshot takes them from there.
        self._restored.pop(name, None)
        return handle

    def _load(self, descriptor: ListStateDescriptor, declared: ListSnapshot) -> list[Any]:
        kept = self._restored.get(descriptor.name)
        if kept is None:
            return []
        reader, reason = None, ""
        try:
            if kept.mode is declared.mode:
                old, new = (Form(s.serializer, s.version, s.type_name, s.schema) for s in (kept, declared))
                serializer, hint = serializer_for(descriptor.type), descriptor.type
                reader = reader_of(old, new, serializer, hint, (), descriptor.migrate)
        except IncompatibleSchemaError as error:
            reason = f": {error}"
        if reader is None:
            migrate = "give its descriptor migrate=, a function that makes a new value of an old one, "
            raise IncompatibleStateError(
                f"operator state {descriptor.name!r} of operator {self._operator!r} cannot be restored: the "
                f"snapshot holds {kept}, the job declares {declared}{reason}. Declare it as it was, "
                f"{migrate if reason else ''}give the new one another name, or start without the snapshot"
            )
        try:
            return [reader.loads(element) for element in kept.elements]
        except SerializationError as error:
            raise StateError(
                f"operator state {descriptor.name!r} of operator {self._operator!r} cannot be restored as "
                f"{declared}: {error}"
            ) from error

    def _empty(self, descriptor: ListStateDescriptor, mode: ListMode) -> ListSnapshot:
        serializer = serializer_for(descriptor.type)
        shown = type_name(descriptor.type) if is_known(descriptor.type) else ""
        return ListSnapshot(
            descriptor.name,
            mode,
            serializer.name,
            serializer.version,
            shown,
            self._subtask,
            self._parallelism,
            schema=schema_of(serializer, descriptor.type),
        )


class _InitializationContext(FunctionInitializationContext):
    def __init__(self, *, is_restored: bool, lists: SubtaskLists, raw: RawStates, runtime: RuntimeContext) -> None:
        self._is_restored = is_restored
        self._raw = raw
        self._lists = lists
        self._runtime = runtime

    @property
    def is_restored(self) -> bool:
        return self._is_restored

    @property
    def operator_state_store(self) -> OperatorStateStore:
        return self._lists

    @property
    def keyed_state_store(self) -> RuntimeContext:
        return self._runtime

    @property
    def raw_operator_state(self) -> list[bytes]:
        return self._raw.restored_chunks()

    @property
    def raw_keyed_state(self) -> dict[int, bytes]:
        return self._raw.restored_streams()


class FunctionStates:
    """Operator state of one step in one subtask, and the user's objects that have it.

    Args:
        operator: uid of the step.
        subtask: index of the subtask.
        parallelism: parallelism of the step.
        objects: the user's objects; those that are no CheckpointedFunction are ignored.
        runtime: their access to keyed state.
        restored: the snapshots of all earlier subtasks, of this and perhaps other steps.
        key_groups: key groups of the subtask; None: the step has no keys.
    """

    def __init__(
        self,
        operator: str,
        subtask: int,
        parallelism: int,
        objects: Iterable[object],
        runtime: RuntimeContext,
        restored: Sequence[OperatorSnapshot],
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        share = share_of_lists(
            (kept for s in restored if s.uid == operator for kept in s.lists), subtask, parallelism
        )
        managed = [kept for kept in share if kept.mode not in _RAW]
        self._lists = SubtaskLists(operator, subtask, parallelism, managed)
        raw = [kept for kept in share if kept.mode in _RAW]
        self._raw = RawStates(operator, subtask, parallelism, key_groups, raw)
        self.step_name = runtime.operator_name
        objects = list(objects)
        self._objects = [o for o in objects if isinstance(o, CheckpointedFunction)]
        self._listeners = [o for o in objects if isinstance(o, CheckpointListener)]
        self._context = _InitializationContext(
            is_restored=any(s.uid == operator for s in restored), lists=self._lists, raw=self._raw, runtime=runtime
        )

    @property
    def held(self) -> bool:
        """True if any object has operator state."""
        return bool(self._objects)

    @record_loop  # so that a message names this step and no other one in the chain
    def initialize(self) -> None:
        """Call ``initialize_state`` of the objects."""
        for function in self._objects:
            note_opened(function)
            function.initialize_state(self._context)

    @record_loop
    def prepare(self, checkpoint_id: int, now_ms: int) -> None:
        """Call ``snapshot_state`` of the objects."""
        self._raw.begin()
        for function in self._objects:
            function.snapshot_state(
                FunctionSnapshotContext(now_ms, checkpoint_id, self._raw.chunks, self._raw.streams)
            )

    @record_loop
    def completed(self, checkpoint_id: int) -> None:
        """Notify the objects that listen to checkpoints of a completed one."""
        for listener in self._listeners:
            listener.notify_checkpoint_complete(checkpoint_id)

    @record_loop
    def aborted(self, checkpoint_id: int) -> None:
        """Notify the objects that listen to checkpoints of an aborted one."""
        for listener in self._listeners:
            listener.notify_checkpoint_aborted(checkpoint_id)

    def snapshot(self) -> tuple[ListSnapshot, ...]:
        """Return the current lists, and the raw state written for the snapshot."""
        return (*self._lists.snapshot(), *self._raw.snapshot())
