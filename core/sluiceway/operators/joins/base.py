"""Common parts of the joins of two keyed streams: keys and timestamps by input, results, late records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sluiceway.elements import Batch
from sluiceway.errors import MisusedStateError
from sluiceway.functions import KeySelector
from sluiceway.isolation import all_unchangeable, classes_in, copied
from sluiceway.keygroups import check_key
from sluiceway.operators.base import Operator
from sluiceway.operators.escape_analysis import attributes_read, keeps_nothing, shares_attributes
from sluiceway.operators.process_context import Results as ProcessResults
from sluiceway.operators.results import check_results
from sluiceway.record_errors import MISSING, Fault, record_loop, register_loop

__all__ = [
    "InputKey",
    "Lender",
    "Pair",
    "Results",
    "Run",
    "check_joined",
    "insert",
    "pair_loop",
]

F = TypeVar("F", bound=Callable[..., Any])

_SURELY_STABLE: Final = frozenset({str, int, bool, bytes, type(None)})

Run: TypeAlias = list[tuple[int, Any]]
"""Records of one key with their timestamps, in order of time; those of one timestamp in order of arrival."""


def insert(run: Run, timestamp: int, value: Any) -> int:
    """Insert a record in order of time; return its index. Appending, the usual case, takes constant time."""
    if not run or run[-1][0] <= timestamp:
        run.append((timestamp, value))
        return len(run) - 1
    # A tuple of one element sorts before every pair that begins with it, so that records are never compared.
    at = bisect_left(run, (timestamp + 1,))
    run.insert(at, (timestamp, value))
    return at


class Results(ProcessResults):
    """Results with their timestamps."""

    __slots__ = ()

    def emit(self, operator: Operator) -> None:
        """Emit the results, if there are any."""
        if self.values:
            operator.output.emit(Batch(self.values, self.stamps))

    def fill_stamps(self, timestamp: int) -> None:
        """Set the timestamp of the values that were added last."""
        self.stamps.extend([timestamp] * (len(self.values) - len(self.stamps)))


# ---- the user's function ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Arguments of the user's function as notes on an error show them."""

    left: Any
    right: Any


def pair_loop(function: F) -> F:
    """Mark a function that calls the user's with its variables ``left`` and ``right``; for notes on errors."""
    register_loop(function.__code__, _read_pair)
    return function


def _read_pair(frame: FrameType, line: int, called: FrameType | None) -> Fault:
    names = frame.f_locals
    return Fault(
        step=getattr(names.get("self"), "step_name", None),
        value=Pair(names["left"], names["right"]) if "left" in names and "right" in names else MISSING,
        key=names.get("key", MISSING),
        timestamp=names.get("timestamp", MISSING),
        returned=MISSING,
        innermost=False,
    )


def check_joined(step: str, returned: Any) -> type:
    """Return the type of what a function gave for a pair, if it is valid. Raises FunctionContractError."""
    return check_results(f"for a pair, the function of step {step!r}", returned)


class Lender:
    """Caller of a join's function with records of the state: with copies of those that can be changed.

    Args:
        call: the function; its arguments are left, right, and any number of others.
        shares: True if the function receives the objects in the state in any case.

    Attributes:
        call: the function to call.
        isolates: True if results may be objects that the function keeps, or that are in attributes which records
            share.
    """

    def __init__(self, call: Callable[..., Any], *, shares: bool) -> None:
        self.call = call
        self.isolates = not shares and not keeps_nothing(call)
        self._plain = call
        self._shares = self._lends = shares
        self._read = attributes_read(call)
        self._classes: set[type] = set()

    def look(self, values: Sequence[Any]) -> None:
        """Check records that will be stored: one that can be changed makes the function receive copies."""
        self._look_at_classes(values)
        if not self._lends and not all_unchangeable(values):
            self.lend_copies()

    def look_at_restored(self, runs: Iterable[Run], *, in_memory: bool) -> None:
        """Check records of a restored state, of which no batch says whether they can be changed.

        Args:
            runs: all of them.
            in_memory: False: each one has to be read. Copies are passed then, if there is any, as the state may be
                far larger than memory.
        """
        for run in runs:
            self._look_at_classes(run)
            if not self._lends and not (in_memory and all_unchangeable(run)):
                self.lend_copies()
            if not in_memory:
                break

    def _look_at_classes(self, values: Sequence[Any]) -> None:
        if not self._read or self._shares or self.isolates:
            return
        new = {cls for value in (*values[:1], *values[-1:]) for cls in classes_in(value)} - self._classes
        self._classes |= new
        self.isolates = any(shares_attributes(cls, self._read) for cls in new)

    def lend_copies(self) -> None:
        """Pass copies to the function from now on."""
        if self._lends:
            return
        self._lends = True
        plain = self._plain
        self.call = lambda left, right, *rest: plain(copied(left), copied(right), *rest)


# ---- one batch ------------------------------------------------------------------------------------------------


class InputKey:
    """Keys and timestamps of the batches of one input.

    Args:
        operator: name of the step, for messages.
        side: ``left`` or ``right``.
        key: computes a record's key.
    """

    def __init__(self, operator: Operator, side: str, key: Callable[[Any], Any] | KeySelector[Any, Any]) -> None:
        self.step_name = operator.step_name
        self._side = side
        self._key = key.get_key if isinstance(key, KeySelector) else key

    def keys(self, batch: Batch[Any]) -> Sequence[Any]:
        """Return one key per record, checked; keys that came with the batch were checked by its sender."""
        return self._computed(batch.values) if batch.keys is None else batch.keys

    @record_loop
    def _computed(self, values: Sequence[Any]) -> list[Any]:
        key_of = self._key
        keys: list[Any] = []
        add = keys.append
        for value in values:
            add(key_of(value))
        if not _SURELY_STABLE.issuperset(map(type, keys)):
            for index, key in enumerate(keys):
                value = values[index]
                check_key(key)
        return keys

    def stamps(self, batch: Batch[Any]) -> Sequence[int]:
        """Return one timestamp per record. Raises StateError if the batch has none."""
        if batch.timestamps is None:
            raise MisusedStateError(
                f"step {self.step_name!r} goes by event time, but the records of its {self._side} input have no "
                "timestamps: put assign_timestamps_and_watermarks(...) before key_by()"
            )
        return batch.timestamps
