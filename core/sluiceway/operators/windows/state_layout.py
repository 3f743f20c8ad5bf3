"""Layout of a window step's state, and the takeover of the state of another operator.

The operator of a step depends on its trigger, its evictor, its allowed lateness and its functions. So after
one of these was changed, a snapshot may reach an operator other than the one that took it. It takes over what
it can, and refuses the rest: no window is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from sluiceway.elements import MIN_WATERMARK
from sluiceway.errors import IncompatibleStateError
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.isolation import copied
from sluiceway.operators.keyed_timers import DUE, TIMERS, timers_in
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.slice_choice import can_merge
from sluiceway.operators.windows.sliced_elements import Arrival, in_order
from sluiceway.record_errors import MISSING
from sluiceway.state import KeyedStateBackend, StateDescriptor, StateTable, ValueStateDescriptor
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.windows.base import TimeWindow

__all__ = [
    "EVALUATED",
    "EVALUATED_UP_TO",
    "MERGING",
    "REACHED",
    "Held",
    "Kept",
    "evaluated_before",
    "had_ended",
    "merge_function",
    "slices",
    "takes_over",
    "windows",
]

Held: TypeAlias = tuple[TimeWindow, TimeWindow]
"""A window of a key, and its place: the window under whose name its contents are kept."""

EVALUATED: Final = ValueStateDescriptor("evaluated windows", bool)
"""By window: keys for which it was evaluated and that are kept for late records, or whose evaluation a snapshot
interrupted."""

EVALUATED_UP_TO: Final = ValueStateDescriptor("evaluated up to", int)
"""For slices: the end of the last window that was evaluated for a key."""

REACHED: Final = ValueStateDescriptor("watermark of windows with a trigger", int)
"""By key, how far the watermark was. Of a window that is kept for late records the only timer may be that of its
cleanup, before its end as behind it: not every trigger sets one."""

MERGING: Final = ValueStateDescriptor("merging windows", list[Held])
"""The windows of a key that merge."""

_KINDS: Final = {
    "reduced": "one record each, as reduce() makes it",
    "accumulators": "an accumulator each, as aggregate() does",
    "elements": "all their records, as process() and apply() do",
    "elements with timestamps": "all their records with timestamps, as an evictor wants them",
}


def _kind(step: WindowStep) -> str:
    if step.evictor is not None:
        return "elements with timestamps"
    if step.contents is WindowContents.ELEMENTS:
        return "elements"
    return "reduced" if step.contents is WindowContents.REDUCED else "accumulators"


def windows(step: WindowStep) -> ValueStateDescriptor:
    """Return the table of windows: by start and end, the contents of each key."""
    return ValueStateDescriptor(f"windows: {_kind(step)}")


def slices(step: WindowStep) -> ValueStateDescriptor:
    """Return the table of slices: by start and end, the contents of each key."""
    return ValueStateDescriptor(f"slices: {_kind(step)}")


def takes_over(step: WindowStep, state: str) -> bool:
    """Return whether a window step can take over a state of an earlier version of it, by the state's name."""
    others = {f"{what}: {kind}" for kind in _KINDS if kind != _kind(step) for what in ("windows", "slices")}
    return state not in others


def merge_function(step: WindowStep) -> Callable[[Any, Any], Any]:
    """Return ``merge(older, newer)`` of the contents of windows."""
    fn: Any = step.fn
    if isinstance(fn, AggregateFunction):
        return fn.merge
    reduce: Callable[[Any, Any], Any] = fn.reduce if isinstance(fn, ReduceFunction) else fn
    return reduce


def had_ended(key: Any, last: int, reached: Mapping[Any, int] | None) -> bool:
    """Return whether the watermark had passed a window's last ms; where it was not kept, timers alone tell."""
    return reached is None or last <= reached.get(key, MIN_WATERMARK)


def evaluated_before(
    keys: Iterable[Any],
    window: tuple[int, int],
    marked: set[Any],
    timers: Mapping[tuple[Any, Hashable], list[int]] | None,
    reached: Mapping[Any, int] | None,
) -> set[Any]:
    """Return the keys of a window for which it was evaluated before the snapshot.

    Args:
        keys: the keys with contents.
        window: its start and end.
        marked: the keys that tumbling windows in slices have marked as evaluated.
        timers: timers of the general operator, one for each key that is not evaluated; None: another operator.
        reached: how far the watermark was, by key; None: that was not kept.
    """
    if timers is None:
        return marked
    last = window[1] - 1
    # Without a timer the default is the window itself, whose minimum is its start: not evaluated. A timer at the
    # window's end or later is that of its cleanup.
    return marked | {
        key for key in keys if min(timers.get((key, window), window)) > last and had_ended(key, last, reached)
    }


class Kept:
    """Snapshots of a window step.

    Args:
        step: the step as it is now.
        step_name: its name.
        restored: its snapshots.
        backend: the state that was made of them.
    """

    def __init__(
        self, step: WindowStep, step_name: str, restored: Sequence[OperatorSnapshot], backend: KeyedStateBackend
    ) -> None:
        self._step = step
        self._step_name = step_name
        self._backend = backend
        self._names = {meta.name for s in restored if s.keyed is not None for meta in s.keyed.tables}

    def __bool__(self) -> bool:
        return bool(self._names)

    def table(self, descriptor: StateDescriptor) -> StateTable | None:
        """Return a table, if the snapshots have one of that name with entries."""
        if descriptor.name not in self._names:
            return None
        table = self._backend.table(descriptor)
        return None if next(table.namespaces(), MISSING) is MISSING else table

    def check(self, *, merging: bool) -> None:
        """Refuse what the step cannot take over.

        Args:
            merging: True if its windows merge.

        Raises:
            IncompatibleStateError: windows have other contents now, or windows that merge have become others, or
                the reverse.
        """
        now = _kind(self._step)
        for kind, what in _KINDS.items():
            for table in (f"windows: {kind}", f"slices: {kind}"):
                if kind != now and self.table(ValueStateDescriptor(table)) is not None:
                    self.refuse(f"they keep {what}, and now they would keep {_KINDS[now]}")
        was_merging = self.table(MERGING) is not None
        if was_merging != merging and (was_merging or self.table(windows(self._step)) is not None):
            self.refuse(f"they {'' if was_merging else 'do not '}merge, unlike those of {self._step.assigner!r}")
        if merging and self.table(slices(self._step)) is not None:
            self.refuse(f"they do not merge, unlike those of {self._step.assigner!r}")

    def refuse(self, why: str) -> NoReturn:
        """Raise the error for open windows that the step cannot continue from."""
        raise IncompatibleStateError(
            f"step {self._step_name!r} cannot restore the windows that are open in its snapshot: {why}. Undo "
            "what was changed in the step until these windows have ended, or give it another uid, so that it "
            "begins without them"
        )

    def evaluated(self) -> dict[Hashable, set[Any]]:
        """Remove and return the keys for which tumbling windows in slices were evaluated, by window."""
        table = self.table(EVALUATED)
        if table is None:
            return {}
        found = {namespace: set(table.keys(namespace)) for namespace in table.namespaces()}
        for namespace in found:
            table.drop(namespace)
        return found

    def timers(self) -> dict[tuple[Any, Hashable], list[int]] | None:
        """Remove and return the timestamps of the timers of the general operator, by key and window.

        Return None if another operator has taken the snapshot.
        """
        table = self.table(TIMERS)
        if table is None:
            return None
        found: dict[tuple[Any, Hashable], list[int]] = {}
        entries = table.entries()
        for key, timers in entries.items():
            for _, timestamp, namespace in timers_in(timers):
                window = namespace[:] if isinstance(namespace, tuple) else ()
                found.setdefault((key, window), []).append(timestamp)
        entries.clear()
        if (due := self.table(DUE)) is not None:
            due.entries().clear()
        return found

    def reached(self) -> dict[Any, int] | None:
        """Remove and return how far the watermark was, by key; None: that was not kept."""
        table = self.table(REACHED)
        if table is None:
            return None
        entries = table.entries()
        found = dict(entries.items())
        entries.clear()
        return found

    def make_windows(self) -> None:
        """Convert slices to windows, for an operator that has no slices."""
        kept = self.table(slices(self._step))
        if kept is None:
            return
        up_to: dict[Any, int] = {}
        if (marks := self.table(EVALUATED_UP_TO)) is not None:
            up_to = dict(marks.entries())
            marks.entries().clear()
        into = self._backend.table(windows(self._step))
        if self._step.contents is WindowContents.ELEMENTS:
            self._list_elements(kept, into, up_to)
            return
        if not can_merge(self._step.fn):
            self.refuse(f"they are kept in slices to be merged, and {type(self._step.fn).__name__} has no merge()")
        merge = merge_function(self._step)
        spans: Any = kept.namespaces()
        for start, end in sorted(spans):
            slice_ = dict(kept.entries((start, end)))
            for window in self._windows_around(start, end):
                entries = into.entries(window)
                for key, later in slice_.items():
                    if window[1] <= up_to.get(key, MIN_WATERMARK):
                        continue
                    before = entries.get(key, MISSING)
                    # Several windows take over the accumulator of a slice, and merge() may change its arguments.
                    entries[key] = copied(later) if before is MISSING else merge(before, copied(later))
            kept.drop((start, end))

    def _list_elements(self, kept: StateTable, into: StateTable, up_to: Mapping[Any, int]) -> None:
        """Append the arrivals in slices to lists of the records in windows."""
        found: dict[tuple[int, int], dict[Any, list[list[Arrival]]]] = {}
        spans: Any = kept.namespaces()
        for start, end in list(spans):
            slice_ = dict(kept.entries((start, end)))
            for window in self._windows_around(start, end):
                for key, arrivals in slice_.items():
                    if window[1] > up_to.get(key, MIN_WATERMARK):
                        found.setdefault(window, {}).setdefault(key, []).append(arrivals)
            kept.drop((start, end))
        for window, keys in found.items():
            entries = into.entries(window)
            for key, parts in keys.items():
                entries[key] = [*entries.get(key, ()), *in_order(parts)]

    def _windows_around(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Return the windows that include a slice. Raises StateError if it crosses the border of one."""
        assigner: Any = self._step.assigner
        size: int | None = getattr(assigner, "size_ms", None)
        if size is None:
            self.refuse(f"they share slices, which cannot be made into windows of {assigner!r}")
        slide = getattr(assigner, "slide_ms", size)
        last = start - (start - assigner.offset_ms) % slide
        for first in range(last, start - size, -slide):
            # The slice would belong to two windows in part.
            if last + slide < end or first + size < end:
                self.refuse(f"they have borders at other times than those of {assigner!r}")
            yield first, first + size
