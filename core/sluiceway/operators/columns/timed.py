"""Base of operators of columns with state per key and event time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.idle_keys import HoldsKeys, forget_idle
from sluiceway.columns.keys.key_ids import KeyIds, keys_of_groups
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.state_names import KEYS, PROGRESS, SESSIONS, SLICES
from sluiceway.columns.times import as_array
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Watermark
from sluiceway.errors import IncompatibleStateError, MisusedStateError
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.columns.definition import DEFINITION_STATE, SavedDefinition, cannot_restore
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.slice_types import END_OF_TIME
from sluiceway.state import BlockStateDescriptor, ValueStateDescriptor
from sluiceway.steps import without_timestamps
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.util.overriding import override

__all__ = ["ColumnTimeOperator", "layout_of"]

_BLOCKS: Final = BlockStateDescriptor(SLICES, bytes)
"""By start, end and number of a slice's chunk, or of its changes: the block of each key group, Arrow's IPC format.

Chunk 0 has no number in its namespace; the numbers of changes are below 0.
"""

_PROGRESS: Final = ValueStateDescriptor(PROGRESS, tuple[int, int])
"""Of each key group: the end of the last window that is over, and the number of rows so far."""

_TIMES: Final = ("size_ms", "slide_ms", "step_ms", "offset_ms", "gap_ms")
"""Attributes of assigners of windows."""

_BURST: Final = 1 << 15
"""Rows of results that are emitted before mails have their turn."""


class ColumnTimeOperator(KeyedOperator, TimedOperator):
    """Base of the operators that keep aggregates of keys in arrays until event time has passed them.

    Progress is part of the state, per key group: a restored job knows which windows are over before a watermark
    has come, also where key groups of subtasks that were not equally far meet.
    """

    own_tables: ClassVar[frozenset[str]] = frozenset(
        {_BLOCKS.name, KEYS, SESSIONS, _PROGRESS.name, DEFINITION_STATE.name}
    )

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnWindowStep)
        self._step = step
        self._names: tuple[str, ...] = step.key.names
        self._layout = layout_of(step, self.step_name)
        self._keys = KeyIds(list(self._layout.keys.values()), context.node.max_parallelism)
        self._late_tag = step.late_tag
        self._arrived = 0
        self._numbers_rows = True
        self._kept_keys = 0
        # Windows that end by this are over.
        self._over = MIN_WATERMARK
        # Where a restored key group is further than others: by key group, the end of its last window.
        self._ahead: Any = None
        self._firing: Iterator[None] = iter(())
        self._held: Watermark | None = None

    # ---- state ------------------------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        super().open()
        self._blocks = self.backend.table(_BLOCKS)
        self._progress = self.backend.table(_PROGRESS).entries()
        self._group_keys = keys_of_groups(self.context.node.max_parallelism)
        own, now = range(self.context.key_groups.start, self.context.key_groups.end), self._definition()
        self._saved_definition = SavedDefinition(self.backend, self._group_keys, own, now)
        for old in self._saved_definition.earlier():
            if problem := self._problem_of(old, now):
                raise cannot_restore(self.step_name, problem)
        self._restore_progress()

    def _definition(self) -> dict[str, Any]:
        assigner: Any = self._step.assigner
        # Also what its text leaves out.
        times = {} if assigner is None else {name: getattr(assigner, name, None) for name in _TIMES}
        shown = "none" if assigner is None else repr(assigner)
        return {"windows": shown, "lateness": self._step.lateness_ms, **times}

    def _problem_of(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        if any(old.get(name) != now.get(name) for name in ("windows", *_TIMES)):
            was, is_now = (each["windows"] for each in (old, now))
            return f"its windows were {was}, and are {is_now} now: rows of windows that are over are gone"
        if old["lateness"] < now["lateness"]:
            return (
                f"its allowed lateness was {old['lateness']} ms, and is {now['lateness']} ms now: windows that "
                "would take late rows again are gone"
            )
        return ""

    def _restore_progress(self) -> None:
        own = self.context.key_groups
        kept = [self._progress.get(self._group_keys[group]) for group in range(own.start, own.end)]
        found = [progress for progress in kept if progress is not None]
        if not found:
            return
        # Arrivals only order rows of one key: above all that any of the groups has had is enough.
        self._arrived = max(arrived for _, arrived in found)
        ends = [MIN_WATERMARK if progress is None else progress[0] for progress in kept]
        self._over = min(ends)
        if max(ends) > self._over:
            self._ahead = np.full(self.context.node.max_parallelism, MIN_WATERMARK, np.int64)
            self._ahead[own.start : own.end] = np.minimum(np.array(ends, object), MAX_WATERMARK).astype(np.int64)

    def _other_windows(self) -> IncompatibleStateError:
        assigner = self._step.assigner
        now = "it has no windows now" if assigner is None else f"{assigner!r} has others"
        return cannot_restore(self.step_name, f"windows are open that begin and end at other times; {now}")

    def snapshot(self) -> OperatorSnapshot:
        """Write what has changed."""
        keys = self._group_keys
        self._write_blocks()
        self._saved_definition.save()
        own = self.context.key_groups
        for group in range(own.start, own.end):
            ahead = MIN_WATERMARK if self._ahead is None else int(self._ahead[group])
            self._progress[keys[group]] = (min(max(self._over, ahead), MAX_WATERMARK), self._arrived)
        return super().snapshot()

    @abstractmethod
    def _write_blocks(self) -> None:
        """Write the blocks that have changed since the last snapshot."""

    # ---- rows -------------------------------------------------------------------------------------------------

    @override
    def process(self, batch: Batch[Any]) -> None:
        data: Any = batch.columns
        assert data is not None
        count = data.num_rows
        if not count:
            return
        if self._step.event_time and batch.timestamps is None:
            raise MisusedStateError(without_timestamps(repr(self.step_name)))
        arrivals = np.arange(self._arrived, self._arrived + count) if self._numbers_rows else None
        self._arrived += count
        ids = self._keys.find_in(data, self._names)
        columns = {name: Values(data.column(name)) for name in self._layout.columns}
        self._take(batch, ids, columns, arrivals)

    @abstractmethod
    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        """Add rows.

        Args:
            batch: the rows.
            ids: the number of each row's key.
            columns: the columns that the aggregates read.
            arrivals: numbers of the rows, ascending, also from call to call; None where nothing reads them.
        """

    # ---- time -------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        """Evaluate what is due, a part at a time; the watermark follows the last of it."""
        # The last watermark ends all windows, also those whose end is beyond 64 bits.
        until = watermark.timestamp if watermark.timestamp < MAX_WATERMARK else END_OF_TIME
        if self._is_due(until):
            self._held = watermark
            self._firing = self._fire(until)
            self.has_work = True
            self.work()
        else:
            self._over = max(self._over, until + 1)
            self._forget_keys()
            self.output.control(watermark)

    @abstractmethod
    def _is_due(self, until: int) -> bool:
        """Return if a window may be over when event time has reached ``until``."""

    @abstractmethod
    def _fire(self, until: int) -> Iterator[None]:
        """Emit the results of the windows that are over when event time has reached ``until``, part by part."""

    @override
    def work(self) -> None:
        # One part, then mails have their turn: the task calls again as long as there is work.
        for _ in self._firing:
            return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(held)

    def _forget_keys(self) -> None:
        """Forget keys that are in no window: those of windows that are over, and of late rows."""
        self._kept_keys = forget_idle(self._keys, self._holders(), self._kept_keys)

    @abstractmethod
    def _holders(self) -> Iterable[HoldsKeys]:
        """Return all that hold numbers of keys."""

    def _passed(self, until: int) -> None:
        """Note that event time has reached ``until``; after a restart it may have been further before."""
        self._over = max(self._over, until + 1)
        if self._ahead is not None and self._ahead.max() <= self._over:
            self._ahead = None

    def _emit_rows(self, data: Any, stamps: Any) -> Iterator[None]:
        """Emit rows with their event times, part by part."""
        for begin in range(0, data.num_rows, _BURST):
            part = data.slice(begin, _BURST)
            self.output.emit(Batch.of_columns(part, as_array(stamps[begin : begin + _BURST])))
            yield

    def _bounds(self, name: str, times: Any) -> Any:
        """Return the column of the starts or the ends of windows."""
        return array_of(times).view(self._step.schema.field(name).type)


def layout_of(step: ColumnWindowStep, step_name: str) -> Layout:
    """Return the columns of the state and of the results of a step."""
    entering, where = step.entering, f"step {step_name!r}"
    bound = {name: aggregate.bind(entering, where) for name, aggregate in step.aggregates}
    kinds = {name: _decoded(entering.field(name).type) for name in step.key.names}
    return Layout(kinds, bound, step_name, entering, windows=step.assigner is not None)


def _decoded(kind: Any) -> Any:
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind
