"""Contents of windows: stored form of a key's records, and its evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from functools import reduce as fold
from typing import Any, Final

from sluiceway.errors import FunctionContractError
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.isolation import copied
from sluiceway.keygroups import stable_hash
from sluiceway.operators.folds import Fold, Text, begin_of, fold_of
from sluiceway.record_errors import MISSING
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.windows import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from sluiceway.windows.base import Evictor, EvictorContext, Timestamped, Window

__all__ = ["Contents", "Entries", "contents_for"]

Entries = MutableMapping[Any, Any]

# Assigners that give a record one window, so that nothing else refers to it there.
_ONE_WINDOW: Final[tuple[type, ...]] = (
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    GlobalWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
)


def _kept(entries: Entries, key: Any) -> Any:
    try:
        return entries.get(key, MISSING)
    except TypeError:
        stable_hash(key)  # says which key is unhashable
        raise


class Contents(ABC):
    """Operations on the entries of a window: one per key that has records in it."""

    @abstractmethod
    def add(self, entries: Entries, key: Any, value: Any, timestamp: int) -> bool:
        """Add a record; return whether it is the key's first."""

    @abstractmethod
    def fold(self) -> Fold:
        """Return the function that adds a record to those of its key."""

    @abstractmethod
    def merge(self, entries: Entries, key: Any, other: Any) -> None:
        """Add the contents of another window, whose records are later."""

    @abstractmethod
    def evaluate(self, kept: Any, window: Window) -> list[Any]:
        """Return the argument of the window function for stored contents; without a function the result."""

    def after(self, entries: Entries, key: Any, window: Window) -> None:
        """Update what is stored after an evaluation for a key."""


class _Reduced(Contents):
    """Contents of one record, into which the others are reduced."""

    def __init__(self, function: Any, own: Callable[[Any], Any]) -> None:
        self._own = own
        self._fold = fold_of(function, aggregates=False)
        self._begin = begin_of(function)
        self._reduce: Callable[[Any, Any], Any] = (
            function.reduce if isinstance(function, ReduceFunction) else function
        )

    def fold(self) -> Fold:
        return self._fold

    def add(self, entries: Entries, key: Any, value: Any, timestamp: int) -> bool:
        kept = _kept(entries, key)
        if kept is MISSING:
            stable_hash(key)
            # The function may change the record, which other windows may share.
            entries[key] = copied(self._begin(value))
            return True
        entries[key] = self._reduce(kept, self._own(value))
        return False

    def merge(self, entries: Entries, key: Any, other: Any) -> None:
        kept = entries.get(key, MISSING)
        entries[key] = other if kept is MISSING else self._reduce(kept, other)

    def evaluate(self, kept: Any, window: Window) -> list[Any]:
        return [kept]


class _Aggregated(Contents):
    """Contents of an accumulator."""

    def __init__(self, function: AggregateFunction[Any, Any, Any], own: Callable[[Any], Any]) -> None:
        self._own = own
        self._fold = fold_of(function, aggregates=True)
        self._create = function.create_accumulator
        self._add = function.add
        self._merge = function.merge
        self._result = self._fold.result

    def fold(self) -> Fold:
        return self._fold

    def add(self, entries: Entries, key: Any, value: Any, timestamp: int) -> bool:
        kept = _kept(entries, key)
        if kept is MISSING:
            stable_hash(key)
            entries[key] = self._add(self._own(value), self._create())
            return True
        entries[key] = self._add(self._own(value), kept)
        return False

    def merge(self, entries: Entries, key: Any, other: Any) -> None:
        kept = entries.get(key, MISSING)
        entries[key] = other if kept is MISSING else self._merge(kept, other)

    def evaluate(self, kept: Any, window: Window) -> list[Any]:
        return [kept if self._result is None else self._result(kept)]


class _Elements(Contents):
    """Contents of all records, in the order of their arrival."""

    def fold(self) -> Fold:
        return Fold(Text("[value]", "held.append(value)\n"), None)

    def add(self, entries: Entries, key: Any, value: Any, timestamp: int) -> bool:
        kept = _kept(entries, key)
        if kept is MISSING:
            stable_hash(key)
            entries[key] = [value]
            return True
        kept.append(value)
        # Changed in place: a backend outside memory sees only assignments.
        entries[key] = kept
        return False

    def merge(self, entries: Entries, key: Any, other: Any) -> None:
        kept = entries.get(key)
        entries[key] = other if kept is None else kept + other

    def evaluate(self, kept: Any, window: Window) -> list[Any]:
        # A copy, as the function may keep or change the list.
        return list(kept)


class _Evicted(_Elements):
    """Contents of all records with their timestamps; the evictor removes some of them."""

    def __init__(
        self, evictor: Evictor, context: EvictorContext, conclude: Callable[[list[Any]], list[Any]]
    ) -> None:
        self._evictor = evictor
        self._context = context
        self._conclude = conclude
        self._built_in = type(evictor).__module__.startswith("sluiceway.windows.")
        # Elements that evict_before() has left, for after(), which follows each evaluation.
        self._left: list[Timestamped[Any]] = []

    def fold(self) -> Fold:
        return Fold(Text("[add(value, timestamp)]", "held.append(add(value, timestamp))\n"), Timestamped)

    def add(self, entries: Entries, key: Any, value: Any, timestamp: int) -> bool:
        return super().add(entries, key, Timestamped(value, timestamp), timestamp)

    def evaluate(self, kept: Any, window: Window) -> list[Any]:
        left = self._evictor.evict_before(list(kept), window, self._context)
        self._left = self._checked("evict_before", left)
        return self._conclude([element.value for element in self._left])

    def after(self, entries: Entries, key: Any, window: Window) -> None:
        left = self._checked("evict_after", self._evictor.evict_after(self._left, window, self._context))
        self._left = []
        if left:
            entries[key] = left
        else:
            entries.pop(key, None)

    def _checked(self, method: str, left: Any) -> list[Timestamped[Any]]:
        said = f"{type(self._evictor).__name__}.{method}() gave {left!r:.60} ({type(left).__name__})"
        if not isinstance(left, list):
            raise FunctionContractError(f"{said}; it must return the list of the elements that are left")
        if not self._built_in:
            for kind in set(map(type, left)):
                if not issubclass(kind, Timestamped):
                    raise FunctionContractError(
                        f"{said}, in which an element is of type {kind.__name__}; it must return those of the "
                        "elements that are left as it received them, of type Timestamped, and not their values"
                    )
        return left


def contents_for(step: WindowStep, context: EvictorContext, *, shares: bool) -> Contents:
    """Return the contents of a step's windows.

    Args:
        step: the step.
        context: context of its evictor.
        shares: True if functions do not change records, by the option ``object-reuse``.
    """
    fn: Any = step.fn
    # A function may change the records that it combines, or return one of them as what it has accumulated.
    own: Callable[[Any], Any] = _itself if shares else copied
    # A subclass may assign several windows to a record.
    own_in_window = _itself if type(step.assigner) in _ONE_WINDOW else own
    if step.contents is WindowContents.REDUCED:
        reduce: Callable[[Any, Any], Any] = fn.reduce if isinstance(fn, ReduceFunction) else fn
        if step.evictor is None:
            return _Reduced(fn, own_in_window)
        begin = begin_of(fn)
        return _Evicted(
            step.evictor,
            context,
            # An evictor may leave no record, which has no reduced value.
            lambda values: [fold(reduce, map(own, values[1:]), begin(own(values[0])))] if values else [],
        )
    if step.contents is WindowContents.AGGREGATED:
        if step.evictor is None:
            return _Aggregated(fn, own_in_window)
        of_none = getattr(fn, "has_result_of_none", True)
        return _Evicted(
            step.evictor,
            context,
            lambda values: (
                [fn.get_result(fold(_added_by(fn), map(own, values), fn.create_accumulator()))]
                if values or of_none
                else []
            ),
        )
    return _Elements() if step.evictor is None else _Evicted(step.evictor, context, list)


def _itself(value: Any) -> Any:
    return value


def _added_by(function: AggregateFunction[Any, Any, Any]) -> Callable[[Any, Any], Any]:
    add = function.add
    return lambda accumulator, value: add(value, accumulator)
