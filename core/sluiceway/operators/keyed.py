"""Operators of running reductions and aggregates per key, at the speed of a loop over a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from sluiceway.elements import Batch
from sluiceway.errors import MisusedStateError, StateError
from sluiceway.functions import KeySelector, ReduceFunction
from sluiceway.isolation import ATOMS, copied, separated
from sluiceway.keygroups import check_key
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.escape_analysis import changes_nothing
from sluiceway.operators.folds import Fold, aggregating_loop, begin_of, fold_of
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.keyed_state.queries import NotedBackend
from sluiceway.operators.opened_functions import Opened, may_ask_for_state
from sluiceway.operators.skipped_records import DeadLetters, without
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.state_access import check_claimed
from sluiceway.record_errors import MISSING, record_loop
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    RowsOnDemand,
    StateTable,
    ValueStateDescriptor,
)
from sluiceway.steps import KeyedAggregateStep
from sluiceway.util.overriding import override

__all__ = ["KeyedAggregateOperator", "KeyedCountOperator", "KeyedOperator", "KeyedReduceOperator", "checking"]


def checking(key_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a key selector that raises for keys which are not the same in each process."""

    def checked(value: Any) -> Any:
        key = key_of(value)
        check_key(key)
        return key

    return checked


class KeyedOperator(Operator):
    """Base of the operators with state per key.

    Keys arrive with the batch where the sender had to compute them; otherwise they are computed here.
    """

    store: KeyedStateStore
    own_tables: ClassVar[frozenset[str]] = frozenset()
    """Names of the operator's own tables, besides the state of its function."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        key: Any = getattr(step, "key", None)
        self._fn: Any = step.function
        self._key: Callable[[Any], Any] = key.get_key if isinstance(key, KeySelector) else key
        self._opened = Opened()
        self._dead = DeadLetters(context)
        self._backend: NotedBackend | None = None
        self._saved: Sequence[KeyedSnapshot] = ()

    @property
    def backend(self) -> NotedBackend:
        """Keyed backend. Raises StateError before the state is initialised."""
        if self._backend is None:
            raise StateError(f"step {self.step_name!r} has no state yet")
        return self._backend

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Create the backend and load the subtask's key groups."""
        context = self.context
        self._backend = NotedBackend(
            context.state_backend.create_keyed(
                BackendContext(
                    operator=context.node.uid,
                    subtask=context.subtask,
                    key_groups=context.key_groups,
                    max_parallelism=context.node.max_parallelism,
                )
            )
        )
        keyed = [s.keyed for s in restored if s.keyed is not None]
        if keyed:
            try:
                self._backend.restore(keyed)
            finally:
                for snapshot in keyed:
                    # Rows that are made on demand belong to this subtask alone. Others may be restored by several
                    # subtasks.
                    if isinstance(snapshot.groups, RowsOnDemand):
                        snapshot.release()
        self.store = KeyedStateStore(self._backend, context.clock)
        self._saved = keyed

    @override
    def open(self) -> None:
        self._opened.open(self._fn, self.context, self.store)
        saved, self._saved = self._saved, ()
        check_claimed(self.context, saved, self.store.declared, self.own_tables)

    def _skips(self, error: Exception, batch: Batch[Any], index: int) -> bool:
        """Make a dead letter of the record at which a loop has failed; False if the error must be raised."""
        if not self._dead.skipping:
            return False
        value, key = batch.values[index], MISSING
        if batch.keys is not None:
            key = batch.keys[index]
        else:
            with suppress(Exception):  # it may be the key that cannot be computed
                key = self._key_of(value)
        timestamp = None if batch.timestamps is None else batch.timestamps[index]
        return self._dead.take(error, value, timestamp, key)

    def _key_of(self, value: Any) -> Any:
        """Return the key of a record of the input that is being read."""
        return self._key(value)

    def _looking_ahead(
        self, batch: Batch[Any], table: StateTable, entries: MutableMapping[Any, Any]
    ) -> tuple[list[Any] | None, MutableMapping[Any, Any]]:
        """Return the keys of a batch, or None to compute them one by one, and the mapping to work on."""
        if table.reads_ahead:
            key_of, keys = self._key, batch.keys
            # An error of a key occurs again in the loop, which knows the record.
            if keys is None:
                with suppress(Exception):
                    keys = [key_of(value) for value in batch.values]
            if keys is not None:
                try:
                    return keys, table.working(keys)
                except Exception:
                    if _all_valid(keys):
                        raise  # by the backend, which may not be used any more
            entries = table.entries()  # what is kept of it must not be used after working()
        return batch.keys, entries

    def _run_loop(
        self,
        loop: Callable[[Iterator[Any], MutableMapping[Any, Any], list[Any]], None],
        records: Iterator[Any],
        entries: MutableMapping[Any, Any],
        batch: Batch[Any],
        out: list[Any],
    ) -> list[int]:
        """Run a loop over the records of a batch; after a skipped record, run it over the rest.

        The loop itself has no ``try`` per record, whose cost is noticeable in a loop of few instructions.

        Args:
            loop: ``loop(records, entries, out)`` appends one result for each record.
            records: one item for each record of the batch.
            entries: the mapping to work on.
            batch: the batch.
            out: takes the results.

        Returns:
            the indices of the records that were skipped.
        """
        skipped: list[int] = []
        while True:
            try:
                loop(records, entries, out)
            except Exception as error:
                # Each record so far has a result or was skipped. The iterator stands behind the failing one, where
                # the next round goes on.
                index = len(out) + len(skipped)
                if not self._skips(error, batch, index):
                    raise
                skipped.append(index)
            else:
                return skipped

    def _emit_results(self, batch: Batch[Any], out: list[Any], skipped: list[int]) -> None:
        """Emit one result for each record except those at the skipped indices, whose dead letters it emits."""
        stamps = batch.timestamps
        if skipped and stamps is not None:
            stamps = without(stamps, skipped)
        if out:
            self.output.emit(Batch(out, stamps))
        self._dead.give(self.output)

    @override
    def snapshot(self) -> OperatorSnapshot:
        self.store.before_snapshot()
        return OperatorSnapshot(self.context.node.uid, keyed=self.backend.snapshot())

    @override
    def close(self) -> None:
        try:
            self._opened.close()
        finally:
            if self._backend is not None:
                self._backend.close()


def _all_valid(keys: Sequence[Any]) -> bool:
    try:
        for key in keys:
            check_key(key)
    except Exception:
        return False
    return True


class _RunningOperator(KeyedOperator):
    """Base of the operators that keep one result per key.

    The loops set the current key, which costs time, only for a function that may have state of its own.
    """

    _own: ClassVar[str]
    """Name of the table with the results."""

    def open(self) -> None:
        """Open the function and bind the table."""
        super().open()
        if self._own in self.store.declared:
            raise MisusedStateError(
                f"step {self.step_name!r}: the name of state {self._own!r} is taken: the step itself stores "
                "its results under it. Give the state of the function another name"
            )
        self._table = self.backend.table(ValueStateDescriptor(self._own))
        self._entries = self._table.entries()
        self._sets_key = may_ask_for_state(self._fn)
        # The key selector itself sets the current key, so that the loops need no second form.
        if self._sets_key:
            self._key = self._setting_key(self._key)

    def _setting_key(self, key_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
        store = self.store

        def key_of_record(value: Any) -> Any:
            store.current_key = key = key_of(value)
            return key

        return key_of_record

    def _looking_ahead(
        self, batch: Batch[Any], table: StateTable, entries: MutableMapping[Any, Any]
    ) -> tuple[list[Any] | None, MutableMapping[Any, Any]]:
        """Return no keys if the loop has to compute them one by one to set the current key."""
        return (None, entries) if self._sets_key else super()._looking_ahead(batch, table, entries)


class KeyedReduceOperator(_RunningOperator):
    """Operator of ``state = reduce(state, value)``; emits the new state for every record."""

    _own = "reduce"

    @override
    def open(self) -> None:
        super().open()
        self._reduce: Callable[[Any, Any], Any] = (
            self._fn.reduce if isinstance(self._fn, ReduceFunction) else self._fn
        )
        self._begin = begin_of(self._fn)
        # A function that changes nothing cannot change the state through a result: results are compared with one
        # another once per batch, in place of a copy of each.
        self._looks_later = not (self.shares or self.trusts) and changes_nothing(self._reduce)

    @property
    def _free(self) -> bool:
        """True if results leave the loop without a copy of what the state holds."""
        return self.shares or self.trusts or self._looks_later

    def process(self, batch: Batch[Any]) -> None:
        """Reduce the batch, record by record."""
        out: list[Any] = []
        keys, entries = self._looking_ahead(batch, self._table, self._entries)
        try:
            if keys is None:
                skipped = self._run_loop(self._loop, iter(batch.values), entries, batch, out)
            else:
                records = zip(keys, batch.values, strict=True)
                skipped = self._run_loop(self._loop_with_keys, records, entries, batch, out)
        finally:
            self.store.clear_current_key()
        if self._looks_later:
            out = separated(out)
        self._emit_results(batch, out, skipped)

    @record_loop
    def _loop(self, records: Iterator[Any], entries: MutableMapping[Any, Any], out: list[Any]) -> None:
        key_of, begin, reduce, missing = self._key, self._begin, self._reduce, MISSING
        get, isolates, atoms = entries.get, not self._free, ATOMS
        key = None
        try:
            for value in records:
                key = key_of(value)
                reduced = get(key, missing)
                if reduced is missing:
                    check_key(key)
                    entries[key] = reduced = begin(value)
                else:
                    entries[key] = reduced = reduce(reduced, value)
                if isolates and type(reduced) not in atoms:
                    reduced = copied(reduced)  # the one in the state is the function's to change
                out.append(reduced)
        except TypeError:
            check_key(key)  # says which key is unhashable
            raise

    @record_loop
    def _loop_with_keys(
        self, records: Iterator[tuple[Any, Any]], entries: MutableMapping[Any, Any], out: list[Any]
    ) -> None:
        begin, reduce, missing = self._begin, self._reduce, MISSING
        get, isolates, atoms = entries.get, not self._free, ATOMS
        for key, value in records:
            reduced = get(key, missing)
            if reduced is missing:
                check_key(key)
                entries[key] = reduced = begin(value)
            else:
                entries[key] = reduced = reduce(reduced, value)
            if isolates and type(reduced) not in atoms:
                reduced = copied(reduced)  # the one in the state is the function's to change
            out.append(reduced)


class KeyedAggregateOperator(_RunningOperator):
    """Operator of ``state = add(value, state)``; emits the result, or key and result, for every record."""

    _own = "aggregate"

    @override
    def open(self) -> None:
        super().open()
        step = self.context.node.step
        assert isinstance(step, KeyedAggregateStep)
        self._with_key = step.with_key
        # What a built-in function does is written out in a loop of its own.
        fold = fold_of(self._fn, aggregates=True)
        self._fold = fold if self._with_key and fold.running else None

    def process(self, batch: Batch[Any]) -> None:
        """Aggregate the batch, record by record."""
        if self._fold is not None:
            self._process_built_in(batch, self._fold)
            return
        out: list[Any] = []
        keys: list[Any] = []
        skipped: list[int] = []
        given, entries = self._looking_ahead(batch, self._table, self._entries)
        try:
            self._loop(batch, given, entries, keys, out, skipped)
        finally:
            self.store.clear_current_key()
        if self._with_key:
            if given is not None:
                keys = without(given, skipped) if skipped else given
            out = list(zip(keys, out, strict=True))
        self._emit_results(batch, out, skipped)

    def _process_built_in(self, batch: Batch[Any], fold: Fold) -> None:
        out: list[Any] = []
        skipped: list[int] = []
        keys, entries = self._looking_ahead(batch, self._table, self._entries)
        loop = aggregating_loop(fold.text.first, fold.running, with_keys=keys is not None)
        try:
            loop(self, batch, keys, entries, out, skipped, self._key, fold.first, fold.add)
        finally:
            self.store.clear_current_key()
        self._emit_results(batch, out, skipped)

    @record_loop
    def _loop(
        self,
        batch: Batch[Any],
        given: list[Any] | None,
        entries: MutableMapping[Any, Any],
        keys: list[Any],
        out: list[Any],
        skipped: list[int],
    ) -> None:
        function, missing = self._fn, MISSING
        create, add, result, key_of = function.create_accumulator, function.add, function.get_result, self._key
        get, atoms, isolate = entries.get, ATOMS, self.isolate
        given_keys = iter(given) if given is not None else None
        for value in batch.values:
            try:
                if given_keys is None:
                    key = key_of(value)
                    keys.append(key)
                else:
                    key = next(given_keys)
                try:
                    accumulator = get(key, missing)
                except TypeError:
                    check_key(key)  # says which key is unhashable
                    raise
                if accumulator is missing:
                    check_key(key)
                    accumulator = create()
                accumulator = add(value, accumulator)
                produced = result(accumulator)
                entries[key] = accumulator  # behind what may raise: a record that is skipped is not added
                if type(produced) not in atoms:
                    produced = isolate(produced)
            except Exception as error:
                index = len(out) + len(skipped)
                if not self._skips(error, batch, index):
                    raise
                skipped.append(index)
                # The key of the failing record, where it was computed.
                del keys[len(out) :]
                continue
            out.append(produced)


class KeyedCountOperator(KeyedAggregateOperator):
    """Operator that counts without calling a function, with the state of :class:`KeyedAggregateOperator`."""

    def process(self, batch: Batch[Any]) -> None:
        """Count the batch, record by record."""
        out: list[Any] = []
        keys, entries = self._looking_ahead(batch, self._table, self._entries)
        if keys is None:
            skipped = self._run_loop(self._count, iter(batch.values), entries, batch, out)
        else:
            records = zip(keys, batch.values, strict=True)
            skipped = self._run_loop(self._count_keys, records, entries, batch, out)
        self._emit_results(batch, out, skipped)

    @record_loop
    def _count(self, records: Iterator[Any], entries: MutableMapping[Any, Any], out: list[Any]) -> None:
        key_of, get = self._key, entries.get
        key = None
        try:
            for value in records:
                key = key_of(value)
                count = get(key)
                if count is None:
                    check_key(key)
                    count = 0
                entries[key] = count = count + 1
                out.append((key, count))
        except TypeError:
            check_key(key)  # says which key is unhashable
            raise

    @record_loop
    def _count_keys(
        self, records: Iterator[tuple[Any, Any]], entries: MutableMapping[Any, Any], out: list[Any]
    ) -> None:
        get = entries.get
        key = None
        try:
            for key, value in records:  # noqa: B007 (for who looks for the record)
                count = get(key)
                if count is None:
                    check_key(key)
                    count = 0
                entries[key] = count = count + 1
                out.append((key, count))
        except TypeError:
            check_key(key)
            raise
