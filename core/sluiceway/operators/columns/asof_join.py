"""Operator of the as-of join of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import concatenated, plain_schema
from sluiceway.columns.kept.due_rows import Due, DueRows
from sluiceway.columns.kept.latest_rows import LatestRows
from sluiceway.columns.kept.timed_rows import shifted
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import LATEST, LATEST_KEYS, LEFT_WAITING, RIGHT_WAITING
from sluiceway.columns.times import as_array
from sluiceway.elements import MIN_WATERMARK, Batch
from sluiceway.operators.columns.cold_rows import ColdRows, KeptColumns
from sluiceway.operators.columns.definition import changed_key
from sluiceway.operators.columns.kept_rows import KeptRowsOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.state import BlockStateDescriptor
from sluiceway.steps.column_joins import ColumnAsOfJoinStep
from sluiceway.util.overriding import override

__all__ = ["ColumnAsOfJoinOperator"]

_WAITING: Final = BlockStateDescriptor(LEFT_WAITING, bytes)
_COMING: Final = BlockStateDescriptor(RIGHT_WAITING, bytes)
_LATEST: Final = BlockStateDescriptor(LATEST, bytes)
"""By run of rows: the block of each key group, an Arrow IPC stream."""

_BURST: Final = 1 << 15
"""Rows of results that are emitted before mails have their turn."""


class ColumnAsOfJoinOperator(KeptRowsOperator):
    """Operator of the as-of join: port 0 is the left input, port 1 the right one.

    Rows of both inputs wait until the watermark reaches them. Then those of a key are put in order of time: the
    last right row before a left one is its partner. Of the right rows that are over, the latest of a key is kept.
    """

    own_tables = KeptRowsOperator.own_tables | {_WAITING.name, _COMING.name, _LATEST.name, LATEST_KEYS}

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnAsOfJoinStep)
        self._step = step
        self._left, self._right = plain_schema(step.left), plain_schema(step.right)
        kinds = [self._left.field(name).type for name in step.key.names]
        self._keys = KeyIds(kinds, context.node.max_parallelism)
        self._cold: ColdRows | None = None
        self._emitted = [name for name in self._right.names if name not in step.right_key.names]

    # ---- state ------------------------------------------------------------------------------------------------

    def _definition(self) -> dict[str, Any]:
        step = self._step
        return {"key": list(step.key.names), "right key": list(step.right_key.names), "tolerance": step.tolerance}

    def _problem_of(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        was, is_now = old["tolerance"], now["tolerance"]
        if was is not None and (is_now is None or is_now > was):
            new = "has no bound" if is_now is None else f"is {is_now} ms"
            return f"its tolerance was {was} ms, and {new} now: older right rows are gone"
        return changed_key(old, now, "key", "right key")

    def _restore(self) -> None:
        step, keys = self._step, self._keys
        waiting, coming, latest = map(self.backend.table, (_WAITING, _COMING, _LATEST))
        names, theirs = step.key.names, step.right_key.names
        self._waiting = DueRows(keys, self._left, names, self._blocks(waiting, self._left, names, self._left))
        self._coming = DueRows(keys, self._right, theirs, self._blocks(coming, self._right, theirs, self._right))
        self._latest = LatestRows(keys, self._right, step.tolerance, latest)
        blocks = self._blocks(latest, self._right, theirs, self._right)
        self._know_numbers(waiting, coming, latest)
        columns = KeptColumns(self._right, theirs, self.step_name)
        self._cold = self._cold_rows(self._latest, columns, LATEST_KEYS, step.tolerance)
        for namespace, ids, stamps, data, _ in self._saved_runs(blocks, theirs, None):
            self._latest.add_saved(ids, stamps, data, namespace[-1])
        if self._cold is not None:
            self._cold.all_known()
        self._shrink()
        for rows, columns in ((self._waiting, names), (self._coming, theirs)):
            for namespace, ids, stamps, data, stored in self._saved_runs(rows.blocks, columns, 0):
                rows.add_saved(namespace, ids, stamps, data, stored)
                self._shrink()

    def _save(self) -> None:
        self._waiting.save()
        self._coming.save()
        self._latest.save(self._group_keys)

    def _shrink(self) -> None:
        self._shrink_latest()
        if self._shrink_due(self._waiting, self._coming, others=self._latest.nbytes):
            self._forget_keys(*self._holders())

    def _holders(self) -> list[HoldsKeys]:
        held: list[HoldsKeys] = [self._waiting, self._coming, self._latest]
        return held if self._cold is None else [*held, self._cold]

    def _shrink_latest(self) -> None:
        """Have the latest rows take no more memory than there is for them; keys may get other numbers."""
        if self._cold is not None:
            self._cold.shrink(self._waiting, self._coming)

    def _fetch(self) -> None:
        """Have the latest rows of all keys with numbers in memory."""
        if self._cold is not None:
            self._cold.fetch()

    # ---- rows -------------------------------------------------------------------------------------------------

    @override
    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        return self.process, self._process_right

    def process(self, batch: Batch[Any]) -> None:
        """Keep left rows until the watermark reaches them."""
        self._end_work()
        self._shrink()
        step = self._step
        rows = self._in_time(batch, step.key.names, self._left, step.left_late, 0)
        if rows is not None:
            self._waiting.add(*rows, self._next_number())

    def _process_right(self, batch: Batch[Any]) -> None:
        self._end_work()
        self._shrink()
        rows = self._in_time(batch, self._step.right_key.names, self._right, None, None)
        if rows is None:
            return
        ids, stamps, data = rows
        passed: Any = self.current_watermark
        if self._floors is not None:
            # Restored groups have been joined up to this alone: a watermark below any of them goes no further.
            passed = self._floors[self._keys.groups()[ids]]
        coming = stamps > passed
        if coming.all():
            self._coming.add(ids, stamps, data, self._next_number())
            return
        self._fetch()
        # A right row that the watermark has passed is no partner of earlier left rows, but may be of later ones.
        for put, at in ((self._coming.add, np.flatnonzero(coming)), (self._latest.put, np.flatnonzero(~coming))):
            if len(at):
                put(ids[at], stamps[at], data.take(pa.array(at)), self._next_number())

    # ---- time -------------------------------------------------------------------------------------------------

    def _pass(self, watermark: int) -> Iterator[None]:
        until = MIN_WATERMARK
        while until < watermark:
            # As if the watermark came in steps, where rows that are due are many and in the state.
            until = min(self._waiting.due_until(watermark), self._coming.due_until(watermark))
            lefts, rights = self._waiting.take(until), self._coming.take(until)
            self._fetch()
            if lefts is not None:
                yield from self._joined(lefts, rights)
            if rights is not None:
                self._latest.put(*rights, self._next_number())
            if lefts is not None or rights is not None:
                self._forget_keys(*self._holders())
                self._shrink_latest()
        self._latest.expire(watermark)
        if self._cold is not None:
            self._cold.expire(watermark)

    def _joined(self, lefts: Due, rights: Due | None) -> Iterator[None]:
        found = self._latest.find(lefts.ids)
        source, place, stamps = found.source, found.place, found.stamps
        batches = self._latest.batches
        if rights is not None:
            at = _partners(lefts, rights)
            has = at >= 0
            # Right rows that are due are later than all of those that the watermark had passed before.
            source[has], place[has], stamps[has] = len(batches), at[has], rights.stamps[at[has]]
            batches.append(rights.data)
        if self._step.tolerance is not None:
            source[stamps < shifted(lefts.stamps, -self._step.tolerance)] = -1
        rows = np.flatnonzero(source >= 0) if self._step.how == "inner" else np.arange(len(source))
        for begin in range(0, len(rows), _BURST):
            some = rows[begin : begin + _BURST]
            right = self._gathered(batches, source[some], place[some])
            left = lefts.data.take(pa.array(some))
            data = pa.RecordBatch.from_arrays([*left.columns, *right], schema=self._step.schema)
            self.output.emit(Batch.of_columns(data, as_array(lefts.stamps[some])))
            yield

    def _gathered(self, batches: Sequence[Any], source: Any, place: Any) -> list[Any]:
        """Return the columns of right rows; null where there is none."""
        parts, rows = [], []
        for number in np.unique(source[source >= 0]).tolist():
            at = np.flatnonzero(source == number)
            parts.append(batches[number].select(self._emitted).take(pa.array(place[at])))
            rows.append(at)
        if not parts:
            return [pa.nulls(len(source), self._right.field(name).type) for name in self._emitted]
        order = np.full(len(source), -1, np.int64)
        order[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
        taken = concatenated(parts).take(pa.array(order, mask=order < 0))
        columns: list[Any] = taken.columns
        return columns


def _partners(lefts: Due, rights: Due) -> Any:
    """Return for each left row the place of the last right row of its key up to its time; -1: there is none."""
    count = len(rights.ids)
    ids, stamps = np.concatenate([rights.ids, lefts.ids]), np.concatenate([rights.stamps, lefts.stamps])
    order = np.lexsort((stamps, ids))  # keeps right rows before left ones of the same time
    every = np.arange(len(order))
    sorted_ids = ids[order]
    first = np.maximum.accumulate(np.where(np.append(True, sorted_ids[1:] != sorted_ids[:-1]), every, 0))
    last_right = np.maximum.accumulate(np.where(order < count, every, -1))
    found = np.where(last_right >= first, order[last_right], -1)
    partners = np.empty(len(lefts.ids), np.int64)
    is_left = order >= count
    partners[order[is_left] - count] = found[is_left]
    return partners
