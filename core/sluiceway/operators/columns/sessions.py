"""Operator of aggregates in columns, per key and session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.keyed import can_be_keyed
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.sessions import Sessions
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.joining import as_one
from sluiceway.columns.kept.timed_rows import shifted
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.state_names import SESSIONS, SLICES
from sluiceway.columns.times import as_numbers, as_numpy
from sluiceway.elements import MAX_WATERMARK, Batch
from sluiceway.operators.columns.cold_sessions import SESSIONS_STATE, ColdSessions
from sluiceway.operators.columns.definition import reading
from sluiceway.operators.columns.late_rows import give_late_rows
from sluiceway.operators.columns.timed import ColumnTimeOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.windows import EventTimeSessionWindows

__all__ = ["ColumnSessionOperator"]


_NONE = np.zeros(0, np.int64)

_SESSIONS = ("sessions", 0)
"""Namespace of the blocks."""


class ColumnSessionOperator(ColumnTimeOperator):
    """Operator of sessions whose rows are aggregated in arrays.

    Results are in the order of the sessions' ends, those of one end in that of the arrival of their first rows.

    State: a block per key group, written when a session of it has changed since the last snapshot; a value per key
    once the sessions have exceeded memory.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        assigner: Any = self._step.assigner
        assert isinstance(assigner, EventTimeSessionWindows)
        self._gap = int(assigner.gap_ms or 0)
        self._lateness = self._step.lateness_ms
        self._sessions = Sessions(self._layout, self._keys, self._gap, self._lateness)
        self._cold: ColdSessions | None = None

    def open(self) -> None:
        """Read the open sessions, as many as there is memory for."""
        by_key = any(meta.name == SESSIONS for saved in self._saved for meta in saved.tables)
        super().open()
        if set(self._blocks.namespaces()) - {_SESSIONS}:
            raise self._other_windows()
        self._cold = self._cold_sessions(by_key)
        blocks = self._blocks.entries(_SESSIONS)
        if self._cold is None or not self._open_by_key(self._cold, blocks):
            with reading(self.step_name, SLICES):
                self._sessions.restore(list(blocks.values()))
            self._sessions.forget(self._over_by_group())  # a shorter lateness than before has no use for some

    def _cold_sessions(self, are_there: bool) -> ColdSessions | None:
        """Return the sessions that may be in the state by themselves; None: they cannot be."""
        if not are_there and (self._blocks.working_memory is None or not can_be_keyed(self._layout)):
            return None
        table, own = self.backend.table(SESSIONS_STATE), self.context.key_groups
        return ColdSessions(
            self._layout,
            self._keys,
            self._sessions,
            table,
            self._group_keys,
            range(own.start, own.end),
            self._gap,
            self._lateness,
            self._over_by_group,
        )

    def _open_by_key(self, cold: ColdSessions, blocks: MutableMapping[Any, bytes]) -> bool:
        """Read the sessions if the state has some by key, or more of them than go into memory."""
        memory = self._blocks.working_memory
        if not cold.open() and (memory is None or sum(map(len, blocks.values())) <= memory):
            return False
        if memory is None:
            cold.load_all()
        for group in sorted(blocks):
            with reading(self.step_name, SLICES):
                places = self._sessions.restore([blocks[group]])
            self._sessions.forget(self._over_by_group(), places)
            if memory is not None:
                cold.go_by_key()
                cold.shrink()
        if memory is None:
            self._sessions.all_changed()
        else:
            cold.go_by_key()
            self._blocks.drop(_SESSIONS)
        return True

    def _write_blocks(self) -> None:
        if self._cold is not None and self._cold.by_key:
            self._cold.save()
            return
        entries = self._blocks.entries(_SESSIONS)
        for group, block in self._sessions.blocks().items():
            if block is None:
                entries.pop(self._group_keys[group], None)
            else:
                entries[self._group_keys[group]] = block

    def _shrink(self) -> None:
        """Have the sessions take no more memory than there is for them; keys may get other numbers."""
        if self._cold is not None:
            had_blocks = not self._cold.by_key
            if self._cold.shrink() and had_blocks:
                self._blocks.drop(_SESSIONS)

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        assert batch.timestamps is not None
        if self._cold is not None:
            self._cold.touch(ids)
        stamps: Any = as_numpy(batch.timestamps)
        over = min(max(self._over, self.current_watermark + 1), MAX_WATERMARK)
        limits = np.full(len(stamps), over)
        if self._ahead is not None:
            limits = np.maximum(limits, self._ahead[self._keys.groups()[ids]])
        until = shifted(limits, -self._lateness)
        # Only a row whose own session would be over can change a session that has had its result.
        if self._lateness and (back := shifted(stamps, self._gap) <= limits).any():
            late = self._add_back(ids, stamps, columns, arrivals, limits, until, back)
        else:
            late = self._sessions.add(ids, stamps, columns, arrivals, until)
        if len(late):
            give_late_rows(self, self._late_tag, batch.columns, as_numpy(batch.timestamps), late)
        self._shrink()

    def _add_back(
        self, ids: Any, stamps: Any, columns: dict[str, Values], arrivals: Any, limits: Any, until: Any, back: Any
    ) -> Any:
        """Add rows some of which may belong to sessions that are over, and emit the new results of these.

        Args:
            ids: the number of each row's key.
            stamps: event time of each row, in ms.
            columns: the columns that the aggregates read.
            arrivals: numbers of the rows.
            limits: for each row, sessions of its key that end by this have had their results.
            until: for each row, sessions of its key that end by this take no more rows.
            back: whether a session of the row alone would have had its result.

        Returns:
            the indices, ascending, of the rows that are too late.
        """
        # Keys without such rows at once; of the others one row of each, then the next one of each.
        has_back = np.isin(ids, ids[back])
        rounds = [np.flatnonzero(~has_back)]
        rows = np.flatnonzero(has_back)
        ranks = Runs(ids[rows]).ranks
        order = ranks.argsort(kind="stable")
        rounds += np.split(rows[order], np.flatnonzero(np.diff(ranks[order])) + 1)
        late, found = [_NONE], []
        for rows in rounds:
            if not len(rows):
                continue
            taken = {name: values.take(rows) for name, values in columns.items()}
            gone = self._sessions.add(ids[rows], stamps[rows], taken, arrivals[rows], until[rows])
            late.append(rows[gone])
            kept = np.setdiff1d(rows[back[rows]], rows[gone], assume_unique=True)
            places = self._sessions.places_of(ids[kept], stamps[kept])
            results, starts, ends = self._sessions.results(places)
            again = ends <= limits[kept]
            if again.any():
                found.append((kept[again], self._rows_of(results, starts, ends).filter(array_of(again))))
        if found:
            by_row = np.concatenate([rows for rows, _ in found]).argsort()
            ordered = as_one(pa.Table.from_batches([data for _, data in found]).take(array_of(by_row)))
            ends = as_numbers(ordered.column("window_end"))
            for _ in self._emit_rows(ordered, ends - 1):
                pass
        return np.sort(np.concatenate(late))

    def _rows_of(self, results: dict[str, Any], starts: Any, ends: Any) -> Any:
        results["window_start"] = self._bounds("window_start", starts)
        results["window_end"] = self._bounds("window_end", ends)
        return pa.RecordBatch.from_arrays(list(results.values()), schema=self._step.schema)

    def _over_by_group(self) -> Any:
        over = np.full(self.context.node.max_parallelism, min(self._over, MAX_WATERMARK))
        return over if self._ahead is None else np.maximum(over, self._ahead)

    def _is_due(self, until: int) -> bool:
        end = min(until + 1, MAX_WATERMARK)
        return self._sessions.is_due(end) or (self._cold is not None and self._cold.is_due(end))

    def _fire(self, until: int) -> Iterator[None]:
        last = min(until + 1, MAX_WATERMARK)
        for end in [last] if self._cold is None else self._cold.due(last):
            results, starts, ends = self._sessions.close(end, self._over_by_group())
            yield from self._emit_rows(self._rows_of(results, starts, ends), ends - 1)
            self._passed(until if end == last else end - 1)
            self._forget_keys()
            self._shrink()

    def _forget_keys(self) -> None:
        if self._cold is not None:
            self._cold.settle()
        super()._forget_keys()

    def _holders(self) -> Iterable[HoldsKeys]:
        return [self._sessions] if self._cold is None else [self._sessions, self._cold]
