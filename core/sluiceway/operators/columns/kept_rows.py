"""Base of the operators that keep rows until event time has passed them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import concatenated, plain_rows, rows_of_block
from sluiceway.columns.kept.due_rows import DueRows
from sluiceway.columns.kept.keyed_runs import KeyedRuns
from sluiceway.columns.kept.stored_rows import RowBlocks, StoredRows
from sluiceway.columns.keys.idle_keys import HoldsKeys, forget_idle
from sluiceway.columns.keys.key_ids import KeyIds, key_groups_in, keys_of_groups
from sluiceway.columns.state_names import PROGRESS_OF_ROWS
from sluiceway.columns.times import as_numpy
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch, Watermark
from sluiceway.errors import MisusedStateError
from sluiceway.functions import OutputTag
from sluiceway.operators.base import TimedOperator
from sluiceway.operators.columns.cold_rows import ColdRows, KeptColumns
from sluiceway.operators.columns.definition import DEFINITION_STATE, SavedDefinition, cannot_restore, reading
from sluiceway.operators.columns.late_rows import give_late_rows
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.state import StateTable, ValueStateDescriptor
from sluiceway.steps import without_timestamps
from sluiceway.util.overriding import override

__all__ = ["KeptRowsOperator", "Rows", "SavedRun"]

_PROGRESS: Final = ValueStateDescriptor(PROGRESS_OF_ROWS, tuple[int, int])
"""Of each key group: the watermark that has been processed, and the number of runs of rows by then."""


class Rows(NamedTuple):
    """Rows of a batch that are in time.

    Attributes:
        ids: the number of each row's key.
        stamps: their event times, in ms.
        data: the rows, in plain columns.
    """

    ids: Any
    stamps: Any
    data: Any


class SavedRun(NamedTuple):
    """Rows of a run that a restored state has, those that are not done.

    Attributes:
        namespace: where they are.
        ids: the number of each row's key.
        stamps: their event times, in ms.
        data: the rows.
        stored: the same rows in the state; None: they are not looked up there.
    """

    namespace: tuple[int, ...]
    ids: Any
    stamps: Any
    data: Any
    stored: StoredRows | None


class KeptRowsOperator(KeyedOperator, TimedOperator):
    """Base of the operators that keep rows until event time has passed them, and emit results in parts.

    Progress is part of the state, by key group: rows that were late stay so after a restart, and rows that are
    done are not read again, though their blocks in the state are written once.
    """

    own_tables: ClassVar[frozenset[str]] = frozenset({_PROGRESS.name, DEFINITION_STATE.name})

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._keys: KeyIds
        self._number = 0
        # Watermark and number of the next run when it was processed.
        self._passed = (MIN_WATERMARK, 0)
        # By key group: the watermark that a restored group had reached; None when all of them are passed.
        self._floors: Any = None
        self._parts: Iterator[None] = iter(())
        self._held: Watermark | None = None
        self._kept_keys = 0

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the progress of the key groups, then the rows."""
        self._saved_tables = {meta.name for saved in self._saved for meta in saved.tables}
        super().open()
        self._progress = self.backend.table(_PROGRESS).entries()
        self._group_keys = keys_of_groups(self.context.node.max_parallelism)
        self._groups = {key: group for group, key in enumerate(self._group_keys)}
        self._done: dict[int, tuple[int, int]] = {}
        floors = np.full(self.context.node.max_parallelism, MIN_WATERMARK, np.int64)
        for group in self._own_groups():
            progress = self._progress.get(self._group_keys[group])
            self._done[group] = (MIN_WATERMARK, 0) if progress is None else progress
            floors[group] = self._done[group][0]
            self._number = max(self._number, self._done[group][1])
        if (floors > MIN_WATERMARK).any():
            self._floors = floors
        own, now = self._own_groups(), self._definition()
        self._saved_definition = SavedDefinition(self.backend, self._group_keys, own, now)
        for old in self._saved_definition.earlier():
            if problem := self._problem_of(old, now):
                raise cannot_restore(self.step_name, problem)
        self._restore()

    def _own_groups(self) -> range:
        return range(self.context.key_groups.start, self.context.key_groups.end)

    @abstractmethod
    def _definition(self) -> dict[str, Any]:
        """Return what decides which rows are kept, in values that JSON has."""

    @abstractmethod
    def _problem_of(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return why the rows that were kept by another definition do not suffice; empty: they do."""

    @abstractmethod
    def _restore(self) -> None:
        """Read the rows of the state."""

    @abstractmethod
    def _save(self) -> None:
        """Write the rows that the state does not have."""

    def _blocks(
        self, table: StateTable, schema: Any, names: tuple[str, ...], emitted: Any, *, added: bool = True
    ) -> RowBlocks:
        """Return the blocks of a table.

        Args:
            table: the table.
            schema: the columns of the rows in it.
            names: their key columns.
            emitted: the columns of the rows without those that only the state has.
            added: False if a column that is new to the step may have been there before, without being saved.
        """

        def read(block: bytes) -> tuple[Any, Any]:
            with reading(self.step_name):
                return rows_of_block(block, schema, self.step_name, names, added=added)

        return RowBlocks(table, self._group_keys, read, emitted)

    def _cold_rows(self, runs: KeyedRuns, columns: KeptColumns, name: str, age: int | None) -> ColdRows | None:
        """Return the rows of keys that may be in the state by themselves; None: they cannot be.

        Args:
            runs: the rows in memory, without those.
            columns: the rows.
            name: name of the state.
            age: age in ms up to which a row is kept; None: any.
        """
        memory = self.backend.table(_PROGRESS).working_memory
        if name not in self._saved_tables and (memory is None or not columns.can_be_alone()):
            return None
        table = self.backend.table(ValueStateDescriptor(name, bytes))
        cold = ColdRows(
            columns, runs, self._keys, table, name, self._group_keys, self._own_groups(), age, self._next_number
        )
        cold.open()
        return cold

    def _know_numbers(self, *tables: StateTable) -> None:
        """Have the numbers of new runs be above those of the runs in some tables."""
        for table in tables:
            spaces: Any = table.namespaces()
            self._number = max(self._number, *(namespace[-1] for namespace in spaces), 0)

    def _saved_runs(self, blocks: RowBlocks, names: tuple[str, ...], kept: int | None) -> Iterator[SavedRun]:
        """Return the runs in a table, in the order of arrival.

        Args:
            blocks: of the table; a namespace ends with the number of the run.
            names: the key columns.
            kept: a row is done when the watermark has reached its time and so many ms; None: never.
        """
        table = blocks.table
        namespaces: Any = table.namespaces()
        for namespace in sorted(namespaces, key=lambda found: (found[-1], found)):
            number = namespace[-1]
            self._number = max(self._number, number)
            stamps, rows, places, starts = [], [], [], [0]
            by_group = {self._groups[key]: block for key, block in table.entries(namespace).items()}
            groups = sorted(by_group)
            for group in groups:
                times, data = blocks.read(by_group.pop(group))
                count = len(times)
                left = np.arange(count)
                watermark, done = self._done[group]
                if kept is not None and number < done and watermark > MIN_WATERMARK:
                    left = np.flatnonzero(times > watermark - kept)
                    times, data = times[left], data.take(pa.array(left))
                stamps.append(times)
                rows.append(data)
                places.append(left + starts[-1])
                starts.append(starts[-1] + count)
            times, data = np.concatenate(stamps), concatenated(rows)
            if not len(times):
                table.drop(namespace)
                continue
            stored = None
            if table.working_memory is not None:
                of_rows = np.concatenate(places)
                stored = StoredRows(
                    blocks, namespace, np.array(groups), np.array(starts[:-1]), of_rows, data.nbytes
                )
            ids = self._keys.find([data.column(name) for name in names])
            yield SavedRun(namespace, ids, times, data, stored)

    def snapshot(self) -> OperatorSnapshot:
        """Write new rows and the progress."""
        self._save()
        self._saved_definition.save()
        watermark, number = self._passed
        if number or watermark > MIN_WATERMARK:
            for group in self._own_groups():
                # After the end of the input nothing is kept that may be over.
                self._progress[self._group_keys[group]] = (
                    watermark if watermark < MAX_WATERMARK else MIN_WATERMARK,
                    number,
                )
        return super().snapshot()

    # ---- rows -------------------------------------------------------------------------------------------------

    def _in_time(
        self, batch: Batch[Any], names: tuple[str, ...], schema: Any, tag: OutputTag[Any] | None, slack: int | None
    ) -> Rows | None:
        """Return the rows of a batch that are not late; None if there are none.

        Args:
            batch: the rows.
            names: their key columns.
            schema: their columns, plain.
            tag: the side output for late rows; None: they are dropped and counted.
            slack: rows more than this many ms before the watermark, or at it, are late: 0 or -1; None: none is.
        """
        data: Any = batch.columns
        assert data is not None
        if not data.num_rows:
            return None
        if batch.timestamps is None:
            raise MisusedStateError(without_timestamps(repr(self.step_name)))
        stamps: Any = as_numpy(batch.timestamps)
        late = None
        if slack is not None and self._floors is not None:
            groups = key_groups_in(data, names, self.context.node.max_parallelism)
            late = stamps + slack < np.maximum(self._floors[groups], self.current_watermark)
        elif slack is not None and self.current_watermark > MIN_WATERMARK:
            late = stamps + slack < self.current_watermark
        if late is not None and late.any():
            give_late_rows(self, tag, data, stamps, np.flatnonzero(late))
            left = np.flatnonzero(~late)
            if not len(left):
                return None
            data, stamps = data.take(pa.array(left)), stamps[left]
        data = plain_rows(data, schema)
        return Rows(self._keys.find_in(data, names), stamps, data)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _shrink_due(self, *due: DueRows, others: int) -> bool:
        """Write and forget rows that wait for event time, the latest first, if there is no memory for all.

        Args:
            due: the rows.
            others: bytes of what stays in memory.

        Returns:
            whether any have gone.
        """
        memory = due[0].memory
        if memory is None:
            return False
        others += self._keys.nbytes
        shrunk = False
        while True:
            # Where what stays takes all, there is some memory for new rows, which are written together.
            waiting = sum(rows.rows_nbytes for rows in due)
            kept = memory if not shrunk else memory * 3 // 4
            if others + sum(rows.nbytes for rows in due) <= kept or waiting <= memory // 8:
                return shrunk
            max(due, key=lambda rows: rows.rows_nbytes).store()
            shrunk = True

    def _forget_keys(self, *held: HoldsKeys) -> None:
        """Forget the keys without rows, if most are."""
        self._kept_keys = forget_idle(self._keys, held, self._kept_keys)

    # ---- work -------------------------------------------------------------------------------------------------

    def _start(self, parts: Iterator[None], watermark: Watermark | None = None) -> None:
        """Begin work; the watermark follows its last part."""
        self._parts, self._held = parts, watermark
        self.has_work = True
        self.work()

    def _end_work(self) -> None:
        """Do all that is left: a step before this one in the chain does not wait for it."""
        while self.has_work:
            self.work()

    @override
    def work(self) -> None:
        # One part, then mails have their turn: the task calls again as long as there is work.
        for _ in self._parts:
            return
        self.has_work = False
        held, self._held = self._held, None
        if held is not None:
            self.output.control(self._emitted_watermark(held))

    def _emitted_watermark(self, watermark: Watermark) -> Watermark:
        """Return the watermark that goes on when one has been processed."""
        return watermark

    def advance(self, watermark: Watermark) -> None:
        """Process what is due.

        A watermark below one that a restored key group has reached already goes no further: results of other
        groups that are due by it come when all have reached the same.
        """
        self._end_work()
        if self._floors is not None:
            own = self._floors[self.context.key_groups.start : self.context.key_groups.end]
            if watermark.timestamp < own.max():
                return
            if watermark.timestamp == own.min():  # it has been processed before the restart
                self.output.control(self._emitted_watermark(watermark))
                return
            self._floors = None
        # Before the parts: a snapshot has rows that these are about to emit as done, and it is not taken between
        # parts.
        self._passed = (watermark.timestamp, self._number + 1)
        self._start(self._pass(watermark.timestamp), watermark)

    @abstractmethod
    def _pass(self, watermark: int) -> Iterator[None]:
        """Emit what is due at a watermark, and forget what is over, part by part."""
