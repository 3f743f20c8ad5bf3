"""Windows with a running reduction or aggregate, kept as one accumulator per key and slice.

A record costs one look-up, however many windows have it in them, and no timer: when time has come to the end of
a window, the window is evaluated for all of its keys. The results are those of the general operator, in the
order of the windows' ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from sluiceway.elements import Batch, Watermark
from sluiceway.errors import StateError
from sluiceway.faults import MISSING, record_loop
from sluiceway.functions import ReduceFunction
from sluiceway.keygroups import stable_hash
from sluiceway.operators.base import OperatorContext, TimedOperator
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.windows.parts import Entries, Item
from sluiceway.operators.windows.slices import Slices
from sluiceway.state import ValueStateDescriptor
from sluiceway.steps import WindowContents, WindowStep

__all__ = ["BURST", "SlicedWindowOperator"]

BURST: Final = 1024
"""Results that are made before mails have their turn."""

_SLICES: Final = ValueStateDescriptor("slices of windows")
_STABLE: Final = frozenset({str, int, bytes, bool, type(None)})
"""Types of keys that need no check of their hash."""


class SlicedWindowOperator(KeyedOperator, TimedOperator):
    """What tumbling and sliding windows have in common: records on their way into slices, and bursts.

    Args:
        context: what the task gives.
        slices: the windows' arithmetic.
    """

    def __init__(self, context: OperatorContext, slices: Slices) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, WindowStep)
        self._arithmetic = slices
        self._with_key = step.with_key
        self._lateness = step.allowed_lateness_ms
        self._late_tag = None if step.late_tag is None else step.late_tag.name
        self._late: tuple[list[Any], list[int]] = ([], [])
        self._aggregates = step.contents is WindowContents.AGGREGATED
        # Slices by their start; the open ones take records without a further thought.
        self._slices: dict[int, Entries] = {}
        self._open: dict[int, Entries] = {}
        self._firing: Iterator[None] = iter(())
        self._held: Watermark | None = None
        if self._aggregates:
            self._result: Callable[[Any], Any] | None = self._fn.get_result
        else:
            self._result = None
            self._reduce: Callable[[Any, Any], Any] = (
                self._fn.reduce if isinstance(self._fn, ReduceFunction) else self._fn
            )

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Bind the slices that are in the state."""
        super().open()
        self._table = self.backend.table(_SLICES)
        for start in sorted(self._table.namespaces()):  # type: ignore[type-var]
            self._make(start)  # type: ignore[arg-type]

    def _make(self, start: int) -> Entries:
        entries = self._slices[start] = self._open[start] = self._table.entries(start)
        return entries

    def _drop(self, start: int) -> None:
        self._table.drop(start)
        self._slices.pop(start, None)
        self._open.pop(start, None)

    # ---- records ----------------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Add the records to their slices."""
        given = None if batch.keys is None else iter(batch.keys)
        if self._aggregates:
            self._aggregate(batch.values, self._stamps(batch), given)
        else:
            self._reduce_all(batch.values, self._stamps(batch), given)
        if self._late[0]:
            self._give_late()

    @abstractmethod
    def _stamps(self, batch: Batch[Any]) -> Iterable[int]:
        """The time of each record."""

    @abstractmethod
    def _place(self, start: int, key: Any, value: Any, timestamp: int) -> Entries | None:
        """The slice for a record that belongs into none of the open ones; None: the record is seen to."""

    def _event_times(self, batch: Batch[Any]) -> list[int]:
        if batch.timestamps is None:
            raise StateError(
                f"step {self.step_name!r} has windows of event time, but its records have no timestamps: put "
                "assign_timestamps_and_watermarks(...) before it"
            )
        return batch.timestamps

    def _give_late(self) -> None:
        late, self._late = self._late, ([], [])
        if self._late_tag is None:
            self.context.metrics.counter("numLateRecordsDropped").inc(len(late[0]))
        else:
            self.output.side(self._late_tag, Batch(*late))

    @record_loop
    def _aggregate(self, values: list[Any], stamps: Iterable[int], given: Iterator[Any] | None) -> None:
        key_of, missing, slices, stable = self._key, MISSING, self._open, _STABLE
        create, add = self._fn.create_accumulator, self._fn.add
        width, offset = self._arithmetic.width, self._arithmetic.offset
        start = end = 0
        for value, timestamp in zip(values, stamps, strict=False):
            key = key_of(value) if given is None else next(given)
            if not start <= timestamp < end:
                start = timestamp - (timestamp - offset) % width
                end = start + width
                found = slices.get(start)
                if found is None:
                    found = self._place(start, key, value, timestamp)
                    if found is None:
                        start = end = 0
                        continue
                entries, get = found, found.get
            try:
                accumulator = get(key, missing)
            except TypeError:
                stable_hash(key)  # says which key is unhashable
                raise
            if accumulator is missing:
                if type(key) not in stable:
                    stable_hash(key)
                accumulator = create()
            entries[key] = add(value, accumulator)

    @record_loop
    def _reduce_all(self, values: list[Any], stamps: Iterable[int], given: Iterator[Any] | None) -> None:
        key_of, missing, slices, stable = self._key, MISSING, self._open, _STABLE
        reduce = self._reduce
        width, offset = self._arithmetic.width, self._arithmetic.offset
        start = end = 0
        for value, timestamp in zip(values, stamps, strict=False):
            key = key_of(value) if given is None else next(given)
            if not start <= timestamp < end:
                start = timestamp - (timestamp - offset) % width
                end = start + width
                found = slices.get(start)
                if found is None:
                    found = self._place(start, key, value, timestamp)
                    if found is None:
                        start = end = 0
                        continue
                entries, get = found, found.get
            try:
                reduced = get(key, missing)
            except TypeError:
                stable_hash(key)  # says which key is unhashable
                raise
            if reduced is missing:
                if type(key) not in stable:
                    stable_hash(key)
                entries[key] = value
            else:
                entries[key] = reduce(reduced, value)

    def _add(self, entries: Entries, key: Any, value: Any) -> Any:
        """Add one record to a slice; its accumulator."""
        stable_hash(key)
        accumulator = entries.get(key, MISSING)
        if self._aggregates:
            if accumulator is MISSING:
                accumulator = self._fn.create_accumulator()
            accumulator = self._fn.add(value, accumulator)
        else:
            accumulator = value if accumulator is MISSING else self._reduce(accumulator, value)
        entries[key] = accumulator
        return accumulator

    # ---- time -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _fire(self, until: int) -> Iterator[None]:
        """Evaluate the windows that end by ``until``, a part at a time."""

    @abstractmethod
    def _due(self, until: int) -> bool:
        """Whether :meth:`_fire` has anything to do."""

    def advance(self, watermark: Watermark) -> None:
        """Evaluate what is due, a part at a time; the watermark goes on behind the last of it."""
        if self._due(watermark.timestamp):
            self._held = watermark
            self._firing = self._fire(watermark.timestamp)
            self.has_work = True
            self.work()
        else:
            self.output.control(watermark)

    def work(self) -> None:
        """Do the next part."""
        for _ in self._firing:
            return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(held)

    def _emit(self, items: Iterable[Item], results: list[Any], end: int) -> None:
        """Emit the results of a window, which stand beside items that begin with the key."""
        if results:
            if self._with_key:
                results = [(item[0], result) for item, result in zip(items, results, strict=True)]
            self.output.emit(Batch(results, [end - 1] * len(results)))
