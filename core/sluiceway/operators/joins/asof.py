"""As-of join: each left record with the latest right record of its key, as of the left one's event time.

Left records are buffered until the watermark reaches them, as no earlier right record can arrive after that. Of
the right records, the versions of a key, those are kept that a later left record may ask for: the latest one as of
the watermark and those after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.functions import FlatJoinFunction, JoinFunction, TimeDomain
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.joins.base import InputKey, Lender, Results, Run, check_joined, insert, pair_loop
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.operators.late_records import LateRecords
from sluiceway.operators.timer_queue import Timer
from sluiceway.record_errors import record_loop
from sluiceway.state import VOID_NAMESPACE, ValueStateDescriptor
from sluiceway.steps import AsOfJoinStep
from sluiceway.util.overriding import override

__all__ = ["AsOfJoinOperator"]

_MANY: Final = 4096
"""Approximate number of results per batch."""


class AsOfJoinOperator(TimedKeyedOperator):
    """Operator of the as-of join: port 0 is the left input, port 1 the right one.

    A key has a timer at the earliest moment at which it needs work: a left record to join, or
    a version to drop. Which of the two it is, is decided when it fires.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, AsOfJoinStep)
        self._tolerance = step.tolerance
        self._inner = step.how == "inner"
        self._many = step.gives_many
        self._inputs = InputKey(self, "left", step.key), InputKey(self, "right", step.right_key)
        self._late = LateRecords(self, step.left_late)
        fn = step.fn
        self._lender = Lender(
            fn.join if isinstance(fn, JoinFunction | FlatJoinFunction) else fn, shares=self.shares
        )

    def open(self) -> None:
        """Bind the tables, and open the function."""
        super().open()
        left, right = (self.backend.table(ValueStateDescriptor(f"as-of join {s}")) for s in ("left", "right"))
        self._waiting, self._versions = left.entries(), right.entries()
        restored = chain(self._waiting.values(), self._versions.values())
        self._lender.look_at_restored(restored, in_memory=left.keeps_objects)

    @override
    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        return self.process, self._take_right

    # ---- what comes in ---------------------------------------------------------------------------------------

    def process(self, batch: Batch[Any]) -> None:
        """Buffer left records until the watermark reaches them."""
        source = self._inputs[0]
        self._lender.look(batch.values)
        self._keep_left(batch.values, source.stamps(batch), source.keys(batch))
        self._late.emit()

    @record_loop
    def _keep_left(self, values: Sequence[Any], stamps: Sequence[int], keys: Sequence[Any]) -> None:
        waiting, watermark, late = self._waiting, self.current_watermark, self._late
        get, register = waiting.get, self.event_timers.register
        for value, timestamp, key in zip(values, stamps, keys, strict=True):
            if timestamp < watermark:
                late.add(value, timestamp)
                continue
            run: Run | None = get(key)
            if run is None:
                run = []
            # Only the earliest record of a key needs a timer; the next one is set when it fires.
            if insert(run, timestamp, value) == 0:
                register(timestamp, key, VOID_NAMESPACE)
            waiting[key] = run

    def _take_right(self, batch: Batch[Any]) -> None:
        source = self._inputs[1]
        self._lender.look(batch.values)
        self._keep_right(batch.values, source.stamps(batch), source.keys(batch))

    @record_loop
    def _keep_right(self, values: Sequence[Any], stamps: Sequence[int], keys: Sequence[Any]) -> None:
        versions, watermark = self._versions, self.current_watermark
        get = versions.get
        oldest = None if self._tolerance is None else watermark - self._tolerance
        for value, timestamp, key in zip(values, stamps, keys, strict=True):
            if oldest is not None and timestamp < oldest:
                continue  # no later record can ask for it
            run: Run | None = get(key)
            if run is None:
                run = []
            elif timestamp < run[0][0] <= watermark:
                continue  # already superseded
            at = insert(run, timestamp, value)
            if at and run[at - 1][0] == timestamp:
                at -= 1
                del run[at]  # a correction
            # The first version is superseded by the second: only these two decide when there is work.
            if at < 2:
                self._register_versions(key, run)
            versions[key] = run

    # ---- what is due -----------------------------------------------------------------------------------------

    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
        """Join the due left records of each key, and drop superseded versions."""
        done: list[Results] = [Results()]
        try:
            self._settle_all(timers, done)
        finally:
            self.store.clear_current_key()
        for results in done:
            results.emit(self)

    @record_loop
    def _settle_all(self, timers: Iterator[Timer], done: list[Results]) -> None:
        waiting, versions, watermark = self._waiting, self._versions, self.current_watermark
        for _, key, _ in timers:
            # All that is due by the watermark, whichever timer of the key fired. Further ones then find nothing to
            # do.
            left_run: Run | None = waiting.get(key)
            right_run: Run = versions.get(key, [])
            if left_run is not None and left_run[0][0] <= watermark:
                end = len(left_run) if left_run[-1][0] <= watermark else bisect_left(left_run, (watermark + 1,))
                self._join(key, left_run[:end], right_run, done)
                if end == len(left_run):
                    del waiting[key]
                else:
                    waiting[key] = left_run = left_run[end:]
                    self.event_timers.register(left_run[0][0], key, VOID_NAMESPACE)
            if right_run and (superseded := self._superseded(right_run)):
                right_run = right_run[superseded:]
                if right_run:
                    versions[key] = right_run
                else:
                    del versions[key]
            self._register_versions(key, right_run)

    def _superseded(self, run: Run) -> int:
        """Return the number of versions that no later record can ask for."""
        watermark = self.current_watermark
        count = 0
        if run[0][0] <= watermark:
            count = (len(run) if run[-1][0] <= watermark else bisect_left(run, (watermark + 1,))) - 1
            if self._tolerance is not None and run[count][0] + self._tolerance < watermark:
                count += 1
        return count

    def _register_versions(self, key: Any, run: Run) -> None:
        """Set a timer for the moment when the first version is superseded or too old."""
        if len(run) > 1:
            self.event_timers.register(run[1][0], key, VOID_NAMESPACE)
        if run and self._tolerance is not None:
            self.event_timers.register(run[0][0] + self._tolerance + 1, key, VOID_NAMESPACE)

    @pair_loop
    def _join(self, key: Any, lefts: Run, versions: Run, done: list[Results]) -> None:
        call, tolerance, inner, many = self._lender.call, self._tolerance, self._inner, self._many
        if self._opened:
            self.store.current_key = key
        results = done[-1]
        isolate = self.isolate if self._lender.isolates else None
        kind: type = list
        # Records and versions are in order of time: one pass over both finds each record's version.
        at, count = 0, len(versions)
        for timestamp, left in lefts:
            while at < count and versions[at][0] <= timestamp:
                at += 1
            if at and (tolerance is None or timestamp - versions[at - 1][0] <= tolerance):
                right = versions[at - 1][1]
            elif inner:
                continue
            else:
                right = None
            returned = call(left, right)
            if not many:
                results.values.append(returned if isolate is None else isolate(returned))
            elif returned is not None:
                if type(returned) is not kind:
                    kind = check_joined(self.step_name, returned)
                self.extend(results.values, returned)
            results.fill_stamps(timestamp)
            if len(results.values) >= _MANY:
                results = Results()
                done.append(results)
