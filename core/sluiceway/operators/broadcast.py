"""Operators of process functions of a stream and a broadcast stream, with a copy of the state in every subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final, NoReturn

from sluiceway.elements import Batch
from sluiceway.errors import MisusedStateError, StateError
from sluiceway.functions import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
    TimerService,
)
from sluiceway.operators.base import Operator
from sluiceway.operators.co import CoProcessOperator, KeyedCoProcessOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.process_base import Called, ProcessOperatorBase
from sluiceway.operators.process_context import ProcessContext
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.timer_service import KeyedTimerService
from sluiceway.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.state.declared import EntryCheck, entry_check_of
from sluiceway.steps import BroadcastProcessStep

__all__ = ["make_broadcast_operator"]

_SETTLED: Final = 1024
"""Keys whose objects may be lent at once while a function is applied to all keys."""


def make_broadcast_operator(context: OperatorContext) -> Operator:
    """Return the operator of a broadcast step: one with keyed state if the first input is keyed."""
    keyed = context.node.step.keyed
    return KeyedBroadcastProcessOperator(context) if keyed else BroadcastProcessOperator(context)


# ---- the state ---------------------------------------------------------------------------------------------


class _Look:
    """Read access to one broadcast state, for readers and writers alike."""

    _entries: dict[Any, Any]

    def _bind(self, entries: dict[Any, Any]) -> None:
        self._entries = entries
        # Bound here, so that a look-up costs no more than that of the dict.
        self.get = entries.get
        self.contains = entries.__contains__  # type: ignore[method-assign, assignment]

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def contains(self, key: Any) -> bool:
        return key in self._entries

    def is_empty(self) -> bool:
        return not self._entries


class _Reader(_Look, ReadOnlyBroadcastState[Any, Any]):
    """Broadcast state that refuses writes with an error."""

    def __init__(self, name: str, entries: dict[Any, Any]) -> None:
        self._name = name
        self._bind(entries)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise StateError(
            f"broadcast state {self._name!r} is read-only outside process_broadcast_element(): every subtask sees "
            "records of its own there and their copies would come apart. Change it for broadcast records only"
        )

    put = put_all = remove = clear = pop = popitem = update = setdefault = _refuse
    __setitem__ = __delitem__ = _refuse

    def __repr__(self) -> str:
        return f"<broadcast state {self._name!r}: {self._entries!r}>"


class _Writer(_Look, BroadcastState[Any, Any]):
    """Broadcast state that may be written, for broadcast records."""

    def __init__(self, states: _States, reader: _Reader, check: EntryCheck | None) -> None:
        self._states = states
        self._reader = reader
        self._check = check
        self._bind(reader._entries)

    def put(self, key: Any, value: Any) -> None:
        self[key] = value

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        held = self._open()
        if self._check is not None:
            for key, value in entries.items():
                self._check(key, value)
        held.update(entries)

    def remove(self, key: Any) -> None:
        self._open().pop(key, None)

    def clear(self) -> None:
        self._open().clear()

    def __setitem__(self, key: Any, value: Any) -> None:
        held = self._open()
        if self._check is not None:
            self._check(key, value)
        held[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._open()[key]

    def _open(self) -> dict[Any, Any]:
        # The object may have been kept for a time when nothing may be written.
        if not self._states.writable:
            self._reader._refuse()
        return self._entries

    def __repr__(self) -> str:
        return repr(self._reader)


class _States:
    """Broadcast states of one subtask.

    Attributes:
        writable: True while a broadcast record is processed.
    """

    def __init__(self, context: OperatorContext) -> None:
        step = context.node.step
        assert isinstance(step, BroadcastProcessStep)
        self.writable = False
        self._context = context
        self._declared = {d.name: d for d in step.descriptors}
        self._entries: dict[str, dict[Any, Any]] = {name: {} for name in self._declared}
        self._readers: dict[str, _Reader] = {}
        self._writers: dict[str, _Writer] = {}
        self._make_handles()

    def reader(self, descriptor: MapStateDescriptor) -> _Reader:
        try:
            if self._declared[descriptor.name] is descriptor:
                return self._readers[descriptor.name]
        except (KeyError, AttributeError):
            pass
        return self._readers[self._checked(descriptor)]

    def writer(self, descriptor: MapStateDescriptor) -> _Writer:
        return self._writers[self._checked(descriptor)]

    def snapshot(self) -> dict[str, dict[Any, Any]]:
        """Return a copy that later changes do not affect."""
        copied = {}
        for name, entries in self._entries.items():
            try:
                copied[name] = deepcopy(entries)
            except Exception as error:
                raise StateError(
                    f"broadcast state {name!r} of step {self._context.node.name!r} holds what cannot be copied "
                    f"for a snapshot ({error}): keep in it only what can be pickled"
                ) from error
        return copied

    def restore(self, copies: Sequence[Mapping[str, Mapping[Any, Any]]]) -> None:
        """Take one of the copies, which all say the same; each subtask another, to spread the reading."""
        if copies:
            mine = copies[self._context.subtask % len(copies)]
            # One whose descriptor is no longer given stays, to be there when it is given again.
            self._entries.update((name, dict(entries)) for name, entries in mine.items())
            self._make_handles()

    def _make_handles(self) -> None:
        self._readers = {name: _Reader(name, self._entries[name]) for name in self._declared}
        self._writers = {
            name: _Writer(self, reader, entry_check_of(self._declared[name]))
            for name, reader in self._readers.items()
        }

    def _checked(self, descriptor: MapStateDescriptor) -> str:
        """Return the name of a declared state. Raises StateError."""
        step = self._context.node.name
        if not isinstance(descriptor, MapStateDescriptor):
            raise MisusedStateError(
                f"get_broadcast_state() in step {step!r} takes the MapStateDescriptor that was given to "
                f"broadcast(), not {descriptor!r:.100}"
            )
        known = self._declared.get(descriptor.name)
        if known is None:
            names = ", ".join(map(repr, self._declared))
            raise MisusedStateError(
                f"step {step!r} asks for broadcast state {descriptor.name!r}, but broadcast() was given {names}: "
                "give it this descriptor, too, or correct the name"
            )
        if (known.key_type, known.type) != (descriptor.key_type, descriptor.type):
            raise MisusedStateError(
                f"step {step!r} asks for broadcast state {descriptor.name!r} with other types than broadcast() "
                "was given: use one descriptor for both"
            )
        return descriptor.name


# ---- contexts ----------------------------------------------------------------------------------------------


class _ReadingContext(
    ProcessContext,
    KeyedBroadcastProcessFunction.OnTimerContext,
    KeyedBroadcastProcessFunction.ReadOnlyContext,
    BroadcastProcessFunction.ReadOnlyContext,
):
    """Context for records of the stream, and for timers."""

    def __init__(self, operator: Operator, states: _States, timers: TimerService | None = None) -> None:
        super().__init__(operator, timers)
        # Bound as an attribute, which saves a call for each record. Its signature is that of the method.
        self.get_broadcast_state = states.reader  # type: ignore[method-assign]

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        raise AssertionError("bound in __init__")


class _WritingContext(ProcessContext, KeyedBroadcastProcessFunction.Context):
    """Context for broadcast records."""

    def __init__(self, operator: Operator, states: _States) -> None:
        super().__init__(operator)
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states.writer(descriptor)

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        operator = self._operator
        if not isinstance(operator, KeyedBroadcastProcessOperator):
            self._no_key("keyed state")
        state = _handle(operator.store, descriptor)
        table = operator.backend.table(descriptor)
        try:
            # A copy, as the function may clear the state of a key.
            for number, key in enumerate(list(table.keys()), 1):
                operator.store.current_key = key
                function(key, state)
                # Objects that were lent go back now and then: all of them may be more than the memory holds.
                if number % _SETTLED == 0:
                    operator.store.settle()
        finally:
            operator.store.clear_current_key()

    def get_current_key(self) -> Any:
        self._no_key("a key")

    def timer_service(self) -> TimerService:
        self._no_key("timers")

    def _no_key(self, what: str) -> NoReturn:
        raise StateError(
            f"process_broadcast_element() of step {self._operator.step_name!r} asks for {what}, but a broadcast "
            "record belongs to no key: only records of a keyed stream have that, in process_element()"
        )


def _handle(store: KeyedStateStore, descriptor: StateDescriptor) -> Any:
    match descriptor:
        case ValueStateDescriptor():
            return store.value_state(descriptor)
        case ListStateDescriptor():
            return store.list_state(descriptor)
        case MapStateDescriptor():
            return store.map_state(descriptor)
        case ReducingStateDescriptor():
            return store.reducing_state(descriptor)
        case AggregatingStateDescriptor():
            return store.aggregating_state(descriptor)
    raise StateError(f"apply_to_keyed_state() takes the descriptor of a keyed state, not {descriptor!r:.100}")


# ---- operators ---------------------------------------------------------------------------------------------


class _Broadcasting(ProcessOperatorBase):
    """Base of the broadcast operators: the state, and the processing of broadcast records."""

    _call2: Called

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._states = _States(context)
        self._writing = _WritingContext(self, self._states)

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Take over a copy of the broadcast state."""
        super().initialize_state(restored)
        self._states.restore([s.broadcast for s in restored if s.broadcast is not None])

    def process2(self, batch: Batch[Any]) -> None:
        """Call the function for each broadcast record, which has no key.

        None is skipped, as the copies of the state would differ then.
        """
        self._states.writable = True
        skipping, self._dead.skipping = self._dead.skipping, False
        try:
            self._without_keys(self._call2, self._writing, batch)
        finally:
            self._states.writable = False
            self._dead.skipping = skipping

    def snapshot(self) -> OperatorSnapshot:
        """Return the state, with a copy of the broadcast state."""
        return replace(super().snapshot(), broadcast=self._states.snapshot())


class BroadcastProcessOperator(_Broadcasting, CoProcessOperator):
    """Operator of broadcast process functions on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = _ReadingContext(self, self._states)


class KeyedBroadcastProcessOperator(_Broadcasting, KeyedCoProcessOperator):
    """Operator of keyed broadcast process functions, with state and timers bound to the record's key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = _ReadingContext(self, self._states, KeyedTimerService(self))
