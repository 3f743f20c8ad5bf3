"""Operator of aggregates in columns, per key and session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.sessions import Sessions
from sluiceway.columns.aggregation.slices import HoldsKeys
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.times import as_numpy
from sluiceway.elements import MAX_WATERMARK, Batch
from sluiceway.operators.columns.timed import ColumnTimeOperator
from sluiceway.operators.context import OperatorContext
from sluiceway.windows import EventTimeSessionWindows

__all__ = ["ColumnSessionOperator"]


_SESSIONS = ("sessions", 0)
"""Namespace of the blocks."""


class ColumnSessionOperator(ColumnTimeOperator):
    """Operator of sessions whose rows are aggregated in arrays.

    Results are in the order of the sessions' ends, those of one end in that of the arrival of their first rows.

    State: a block per key group, written when a session of it has changed since the last snapshot.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        assigner: Any = self._step.assigner
        assert isinstance(assigner, EventTimeSessionWindows)
        self._gap = int(assigner.gap_ms or 0)
        self._sessions = Sessions(self._layout, self._keys, self._gap)

    def open(self) -> None:
        """Read the open sessions."""
        super().open()
        if set(self._blocks.namespaces()) - {_SESSIONS}:
            raise self._other_windows()
        self._sessions.restore(list(self._blocks.entries(_SESSIONS).values()))

    def _write_blocks(self) -> None:
        entries = self._blocks.entries(_SESSIONS)
        for group, block in self._sessions.blocks().items():
            if block is None:
                entries.pop(self._group_keys[group], None)
            else:
                entries[self._group_keys[group]] = block

    def _take(self, batch: Batch[Any], ids: Any, columns: dict[str, Values], arrivals: Any) -> None:
        assert batch.timestamps is not None
        stamps: Any = as_numpy(batch.timestamps)
        over = min(max(self._over, self.current_watermark + 1), MAX_WATERMARK)
        limits = np.full(len(stamps), over)
        if self._ahead is not None:
            limits = np.maximum(limits, self._ahead[self._keys.groups()[ids]])
        late = self._sessions.add(ids, stamps, columns, arrivals, limits)
        if len(late):
            self._give_late(batch.columns, batch.timestamps, late)

    def _is_due(self, until: int) -> bool:
        return self._sessions.is_due(min(until + 1, MAX_WATERMARK))

    def _fire(self, until: int) -> Iterator[None]:
        results, starts, ends = self._sessions.close(min(until + 1, MAX_WATERMARK))
        results["window_start"] = self._bounds("window_start", starts)
        results["window_end"] = self._bounds("window_end", ends)
        yield from self._emit_rows(
            pa.RecordBatch.from_arrays(list(results.values()), schema=self._step.schema), ends - 1
        )
        self._passed(until)
        self._forget_keys()

    def _holders(self) -> list[HoldsKeys]:
        return [self._sessions]
