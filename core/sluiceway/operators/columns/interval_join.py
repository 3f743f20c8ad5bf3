"""Operator of the interval join of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import plain_schema
from sluiceway.columns.kept.timed_rows import Matches, TimedRows, shifted, with_matched
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import LEFT, RIGHT
from sluiceway.columns.times import as_array
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Watermark
from sluiceway.operators.columns.definition import changed_key
from sluiceway.operators.columns.kept_rows import KeptRowsOperator, Rows
from sluiceway.operators.context import OperatorContext
from sluiceway.state import BlockStateDescriptor
from sluiceway.steps.column_joins import ColumnIntervalJoinStep
from sluiceway.util.overriding import override

__all__ = ["ColumnIntervalJoinOperator"]

_LEFT: Final = BlockStateDescriptor(LEFT, bytes)
_RIGHT: Final = BlockStateDescriptor(RIGHT, bytes)
"""By width, slice and run of rows: the block of each key group, an Arrow IPC stream."""

_LEAST_WIDTH: Final = 1000
"""Width of a slice in ms, at least."""

_MOST_WIDTH: Final = 1 << 31
"""Width at most, so that the number of a key and a time in the slice fit into 64 bits."""


def slice_width(lower: int, upper: int) -> int:
    """Return the width of a slice in ms: a quarter of the interval, where that is not too little."""
    furthest = max(upper, -lower, 0)
    return min(max(_LEAST_WIDTH, (upper - lower) // 4 + 1, furthest // 16), _MOST_WIDTH)


class ColumnIntervalJoinOperator(KeptRowsOperator):
    """Operator of the interval join: port 0 is the left input, port 1 the right one.

    A row is stored and looks for matches on the other side when it arrives: each pair is made once, by the second
    of the two.
    """

    own_tables = KeptRowsOperator.own_tables | {_LEFT.name, _RIGHT.name}

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ColumnIntervalJoinStep)
        self._step = step
        self._key_names = step.key.names, step.right_key.names
        left, right = map(plain_schema, (step.left, step.right))
        self._schemas = left, right
        kinds = [left.field(name).type for name in step.key.names]
        self._keys = KeyIds(kinds, context.node.max_parallelism)
        self._emitted = [name for name in right.names if name not in step.right_key.names]
        self._width = slice_width(step.lower, step.upper)
        self._outer = step.how in ("left", "full"), step.how in ("right", "full")
        # The event time of a row without a match is its own: as in Flink, watermarks wait for it.
        kept = max(step.upper, 0), max(-step.lower, 0)
        self._delay = max((ms for ms, outer in zip(kept, self._outer, strict=True) if outer), default=0)

    def _definition(self) -> dict[str, Any]:
        step = self._step
        keys = dict(zip(("key", "right key"), map(list, self._key_names), strict=True))
        return {**keys, "how": step.how, "lower": step.lower, "upper": step.upper}

    def _problem_of(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        for side in ("left", "right"):
            if now["how"] in (side, "full") and old["how"] not in (side, "full"):
                return (
                    f"it was a join with how={old['how']!r}, and has how={now['how']!r} now: it is not known "
                    f"which of its {side} rows have had a partner"
                )
        bounds = [(each["lower"], each["upper"]) for each in (old, now)]
        if bounds[0] != bounds[1]:
            was, is_now = (f"{lower} to {upper} ms" for lower, upper in bounds)
            changed = f"its bounds were {was}, and are {is_now} now: "
            if bounds[1][0] < bounds[0][0] or bounds[1][1] > bounds[0][1]:
                return f"{changed}rows and pairs of the wider interval are gone"
            if now["how"] != "inner":  # watermarks went on by the wait of the earlier bounds
                return f"{changed}rows without a partner have waited by the earlier ones"
        return changed_key(old, now, "key", "right key")

    def _restore(self) -> None:
        step = self._step
        tables = self.backend.table(_LEFT), self.backend.table(_RIGHT)
        self._memory = tables[0].working_memory
        self._know_numbers(*tables)  # new ones begin above theirs
        # From the right side's view the bounds are mirrored.
        self._bounds = (step.lower, step.upper), (-step.upper, -step.lower)
        sides = []
        for port, table in enumerate(tables):
            schema, outer = self._schemas[port], self._outer[port]
            saved = with_matched(schema) if outer else schema
            blocks = self._blocks(table, saved, self._key_names[port], schema)
            kept = max(self._bounds[port][1], 0)
            sides.append(TimedRows(self._keys, schema, self._width, kept, blocks, outer=outer))
        self._sides = tuple(sides)
        for side, names in zip(self._sides, self._key_names, strict=True):
            for namespace, ids, stamps, data, stored in self._saved_runs(side.blocks, names, side.kept):
                width, at, number = namespace
                if width == self._width:
                    side.add_saved(at, ids, stamps % width, data, number, stored)
                else:  # the join had other bounds
                    side.blocks.table.drop(namespace)
                    data, matched = side.split(data)
                    side.add(ids, stamps, data, self._next_number(), matched)
                self._shrink()

    def _save(self) -> None:
        for side in self._sides:
            side.save()

    def _shrink(self) -> None:
        """Write and forget the rows of the slices that have been used longest ago, if there is no memory for all.

        Not while pairs are emitted: these are ranges of rows in runs, which change.
        """
        if self._memory is None:
            return
        size = self._keys.nbytes + sum(side.nbytes for side in self._sides)
        # Keys and times stay; where they take all, there is some memory for new rows, which are written together.
        if size <= self._memory or sum(side.rows_nbytes for side in self._sides) <= self._memory // 8:
            return
        for _, port, at in sorted(
            (n, port, at) for port, side in enumerate(self._sides) for n, at in side.in_memory()
        ):
            size -= self._sides[port].store(at)
            if size <= self._memory * 3 // 4:
                break

    # ---- rows -------------------------------------------------------------------------------------------------

    @override
    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        return self.process, self._process_right

    @override
    def process(self, batch: Batch[Any]) -> None:
        self._take(batch, 0)

    def _process_right(self, batch: Batch[Any]) -> None:
        self._take(batch, 1)

    def _take(self, batch: Batch[Any], port: int) -> None:
        self._end_work()
        self._shrink()
        side, other = self._sides[port], self._sides[1 - port]
        tag = self._step.right_late if port else self._step.left_late
        rows = self._in_time(batch, self._key_names[port], side.schema, tag, 0)
        if rows is None:
            return
        ids, stamps, data = rows
        lower, upper = self._bounds[port]
        # Ranges of rows in runs, which stay as they are while pairs are emitted: a batch of either input first
        # ends that work.
        matches = other.find(ids, shifted(stamps, lower), shifted(stamps, upper))
        matched = np.zeros(len(ids), bool) if self._outer[port] else None
        if matches:
            if matched is not None:
                matched[matches.rows()] = True
            if self._outer[1 - port]:
                other.mark(matches)
        side.add(ids, stamps, data, self._next_number(), matched)
        if matches:
            self._start(self._pairs(matches, rows, port))

    def _pairs(self, matches: Matches, rows: Rows, port: int) -> Iterator[None]:
        matches.fetch()
        for at, times, theirs in matches.pieces(self._width):
            mine = rows.data.take(pa.array(at))
            left, right = (theirs, mine) if port else (mine, theirs)
            columns = [*left.columns, *(right.column(name) for name in self._emitted)]
            data = pa.RecordBatch.from_arrays(columns, schema=self._step.schema)
            self.output.emit(Batch.of_columns(data, as_array(np.maximum(rows.stamps[at], times))))
            yield

    # ---- time -------------------------------------------------------------------------------------------------

    def _emitted_watermark(self, watermark: Watermark) -> Watermark:
        time = watermark.timestamp
        if not self._delay or time >= MAX_WATERMARK:
            return watermark
        return Watermark(max(time - self._delay, MIN_WATERMARK))

    def _pass(self, watermark: int) -> Iterator[None]:
        for port, side in enumerate(self._sides):
            if self._outer[port]:
                for times, data in side.unmatched(watermark):
                    self.output.emit(Batch.of_columns(self._alone(data, port), as_array(times)))
                    yield
        left, right = self._sides
        gone = left.expire(watermark), right.expire(watermark)
        if any(gone):
            self._forget_keys(*self._sides)

    def _alone(self, data: Any, port: int) -> Any:
        """Return rows without a match, with nulls for the other side's columns but the key."""
        names = iter(self._emitted)
        own = dict(zip(self._key_names[0], self._key_names[port], strict=True))
        columns = []
        for field in self._step.schema:
            left = field.name in self._schemas[0].names
            name = own.get(field.name, field.name) if left else next(names)
            if left == (port == 0) or (left and field.name in own):
                columns.append(data.column(name))
            else:
                columns.append(pa.nulls(data.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._step.schema)
