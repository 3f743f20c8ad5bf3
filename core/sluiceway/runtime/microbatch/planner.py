"""Planner of the batches of a source, in the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, Final

from sluiceway.clock import Clock, SystemClock
from sluiceway.connector import Source
from sluiceway.errors import CheckpointError
from sluiceway.runtime.microbatch.availability import AvailabilityCheck
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import PLAN, BatchLog, BatchPlan, BatchRead
from sluiceway.runtime.microbatch.batch_reader import BatchReader, BatchWork
from sluiceway.runtime.microbatch.driven_enumerator import DrivenEnumerator, check_all_received
from sluiceway.runtime.microbatch.spooled_source import SpooledSource, SpooledSplit

__all__ = ["BatchLimits", "BatchPlanner", "PlanWhen"]

_KEPT: Final = 20
"""Number of batches that an engine may go back. Engines retry one batch by themselves; users roll back further."""
_MANY: Final = 16_384
_FEWEST: Final = 4
"""Splits that a reader of which nothing is known is assigned."""
_MOST: Final = 1024
"""Splits that a reader has at the most."""


class PlanWhen(Enum):
    """Reason for which a batch is planned."""

    SPLITS = "readers have splits"
    """They read what there is of them, if it is nothing, too."""
    NEWS = "readers have input"
    """Or there is something to tell them; one that had no input in the batch before is looked at for some. Readers
    without splits run once more, to report their end."""
    ALWAYS = "the batch is wanted"
    """As other sources of the job go on, for example."""


class BatchPlanner:
    """Planner of the batches of one source in one run, used by the driver.

    Batches are numbered from 1. A batch is planned when all readers have finished the previous one: from their
    records and the enumerator's assignments. The plan is written before it is returned, and an existing plan is
    never replaced, so that a driver can restart at any time.

    Args:
        source: the source; one that cannot be read again is read in the driver, see :class:`.SpooledSource`.
        files: log of this source and run.
        readers: number of readers; at most ``source.max_readers``.
        clock: real time; None: the system clock.
        limits: limits of each batch.
        reads_what_is_left: whether to read unfinished work of a batch in the driver (the consumer of the readers'
            records wanted no more); else unfinished work is an error.
    """

    def __init__(
        self,
        source: Source[Any],
        files: BatchLog,
        readers: int,
        *,
        clock: Clock | None = None,
        limits: BatchLimits | None = None,
        reads_what_is_left: bool = False,
    ) -> None:
        self.readers = readers
        self._clock = SystemClock() if clock is None else clock
        self._limits = limits or BatchLimits()
        self._reads_what_is_left = reads_what_is_left
        self._files = files
        self._stores = not source.seekable
        self.source: Source[Any] = SpooledSource(source, files, self._limits) if self._stores else source
        self._enumerator: DrivenEnumerator | None = None
        self._at = 0
        self._lookout = AvailabilityCheck(self.source, readers, self._clock)
        self._known: dict[tuple[int, str], Any] = {}
        self._planned_ms: int | None = None
        self._still_since: int | None = None

    def plan(
        self,
        batch: int,
        when: PlanWhen = PlanWhen.SPLITS,
        *,
        wait_s: float | None = None,
        dry_since: int | None = None,
    ) -> BatchPlan | None:
        """Return the plan of a batch; all readers must have finished the previous one.

        Args:
            batch: number of the batch.
            when: what the batch is planned for.
            wait_s: time to wait for the enumerator; None: the time that a reader waits for its first record.
            dry_since: readers that ran out of input in a batch after this one do not run again.

        Returns:
            the plan; None if there is nothing to plan it for within ``wait_s``.

        Raises:
            CheckpointError: files are missing, or cannot be read or written.
            ConnectorError: the source's enumerator has failed, or a reader has ended before it received splits
                that no other reader reads.
        """
        found = self._found(batch)
        if found is not None:
            return found
        enumerator, states = self._before(batch)
        now = dry_since is not None
        is_later = dry_since is not None and batch - 1 > dry_since
        seen = {reader for reader, state in enumerate(states) if is_later and state is not None and state.dry}
        asked_ms = self._clock.now_ms()
        always = when is PlanWhen.ALWAYS
        if wait_s is None:
            wait_s = self._limits.wait_s
        # Two looks: at what is there now, and, if that is nothing, once more after the enumerator has had time to
        # run.
        enumerator.step()
        plan, is_needed = self._look(enumerator, states, seen, when, now=now)
        if not (is_needed or always) and enumerator.step(0.0 if now else wait_s):
            plan, is_needed = self._look(enumerator, states, seen, when, now=now)
        if not (is_needed or always):
            if self._still_since is None:
                self._still_since = asked_ms
            return None
        # The plan holds the splits (peek) before the enumerator drops them (take): if the write fails, they are
        # assigned again by the next call.
        self._create(batch, plan)
        enumerator.take()
        return plan

    def plan_last(self, batch: int) -> BatchPlan:
        """Return the plan of a batch in which nothing is read and all readers end. Raises as :meth:`plan` does."""
        found = self._found(batch)
        if found is not None:
            return found
        enumerator, states = self._before(batch)
        everybody = frozenset(range(self.readers))
        ended = frozenset(reader for reader in everybody if (state := states[reader]) is not None and state.ended)
        snapshot, now_ms = enumerator.snapshot(), self._clock.now_ms()
        plan = BatchPlan({}, everybody, ended, frozenset(), snapshot, now_ms, 0.0, 0.0, 0.0, 0, stops=True)
        return self._create(batch, plan)

    def work(self, batch: int) -> list[BatchWork]:
        """Return the work of each reader in a planned batch, without readers that have ended.

        Raises:
            CheckpointError: files are missing, or cannot be read.
        """
        plan = self._planned(batch)
        return [
            self._work_of(batch, reader, plan, state)
            for reader, state in enumerate(self._states(batch - 1))
            if reader not in plan.ended
        ]

    def ended(self, batch: int) -> bool:
        """Return whether all readers have reached their end with this finished batch.

        Raises:
            ConnectorError: a reader has ended before it received splits that no other reader reads.
        """
        if batch == 0:
            return False
        states = self._states_of(batch, self._planned(batch))
        if not all(state.ended for _, state in states):
            return False
        self._check_received(states)
        return True

    def finished(self, batch: int) -> list[Any]:
        """Return the splits that were read to their end in a finished batch, as they were at its start.

        Raises:
            CheckpointError: files are missing, or cannot be read.
        """
        if batch == 0:
            return []
        left = {split.split_id for state in self._states(batch) if state is not None for split in state.splits}
        return [split for work in self.work(batch) for split in work.splits if split.split_id not in left]

    def positions(self, batch: int) -> dict[str, Any]:
        """Return the splits at the start of a batch, by id, each as JSON-compatible fields or None."""
        return {split.split_id: said(split) for work in self.work(batch) for split in work.splits}

    def committed(self, batch: int) -> None:
        """Delete files of batches that are not retried once this one is committed; the last 20 are kept."""
        before = batch - _KEPT
        if before > 0:
            # Records first: the plan that is forgotten next names their files.
            self._forget_stored(before, batch)
            self._files.forget(before)

    def close(self) -> None:
        """Close the enumerator and the probing readers."""
        self._lookout.close()
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            enumerator.close()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _create(self, batch: int, plan: BatchPlan) -> BatchPlan:
        if not self._files.create(batch, PLAN, plan):
            raise CheckpointError(
                f"two drivers plan batch {batch} in {self._files.where} at the same time; a run must have a "
                "single driver: stop the other one"
            )
        self._at, self._planned_ms, self._still_since = batch, plan.time_ms, None
        return plan

    def _found(self, batch: int) -> BatchPlan | None:
        """Return the plan that this or an earlier driver has made of a batch: the batch is what that says."""
        found = self._files.plan(batch)
        if found is not None and self._at != batch:
            self._attach(batch, found)
        return found

    def _before(self, batch: int) -> tuple[DrivenEnumerator, list[BatchRead | None]]:
        """Return the enumerator and the readers as the batch before has left them."""
        enumerator = self._enumerator
        if enumerator is None or self._at != batch - 1:
            enumerator = self._attach(batch - 1, self._planned(batch - 1) if batch > 1 else None)
        return enumerator, self._states(batch - 1)

    def _attach(self, batch: int, plan: BatchPlan | None) -> DrivenEnumerator:
        """Open the enumerator restored from a plan; None: a new one."""
        self.close()
        self._planned_ms = self._still_since = None
        enumerator = DrivenEnumerator(
            self.source,
            self.readers,
            self._clock,
            restored=None if plan is None else plan.enumerator,
            no_more=() if plan is None else plan.no_more,
        )
        enumerator.start()
        self._enumerator, self._at = enumerator, batch
        return enumerator

    def _look(
        self,
        enumerator: DrivenEnumerator,
        states: list[BatchRead | None],
        dry: Collection[int],
        when: PlanWhen,
        *,
        now: bool,
    ) -> tuple[BatchPlan, bool]:
        """Return a plan, and whether it has any work; ``now``: consider only input that is available already."""
        self._hand_out(enumerator, states)
        assigned, given_up = self._evened(enumerator, states)
        no_more = self._notified(enumerator, states, assigned, given_up)
        limits = self._limits
        ended: set[int] = set()
        resting: set[int] = set()
        is_needed = False
        looks = when is PlanWhen.NEWS and not self._stores
        # Each reader has ended, rests, or runs. A batch is needed if one that runs has something to do.
        for reader, state in enumerate(states):
            fresh = assigned.get(reader)
            has_splits = bool(fresh or (state is not None and state.splits))
            is_left = not has_splits and reader in no_more
            if (is_left and when is PlanWhen.SPLITS) or (state is not None and state.ended):
                ended.add(reader)
            elif now and not fresh and (not has_splits or reader in dry):
                resting.add(reader)
            elif is_left or fresh or (has_splits and (state is None or not looks)):
                is_needed = True
            elif has_splits and not is_needed:
                assert state is not None
                is_needed = self._has_news(no_more, reader, state)
        now_ms = self._clock.now_ms()
        plan = BatchPlan(
            assigned,
            no_more,
            frozenset(ended),
            frozenset(resting),
            enumerator.snapshot(),
            now_ms,
            limits.wait_s,
            limits.wait_s if now else limits.linger_s,
            limits.time_s,
            limits.records,
            since_ms=0 if self._planned_ms is None else max(0, now_ms - self._planned_ms),
            still_ms=0 if self._still_since is None else max(0, now_ms - self._still_since),
            given_up=given_up,
            together=enumerator.together().union(*(state.together for state in states if state is not None)),
            pushed=enumerator.pushed().union(*(state.pushed for state in states if state is not None)),
        )
        return plan, is_needed

    def _has_news(self, no_more: frozenset[int], reader: int, state: BatchRead) -> bool:
        """Return whether a reader without new splits has to run: for input, or to learn that no splits follow."""
        if state.count or not state.dry:
            return True
        is_told = self._at > 0 and reader in self._planned(self._at).no_more
        return (reader in no_more and not is_told) or self._lookout.sees(reader, state)

    def _hand_out(self, enumerator: DrivenEnumerator, states: list[BatchRead | None]) -> None:
        """Assign splits, each to the reader with the fewest, until all have what they may read in the batch."""
        most = {
            reader: self._wanted(state) for reader, state in enumerate(states) if state is None or not state.ended
        }
        held = [0 if state is None else len(state.splits) for state in states]
        wanting = [(held[reader] + enumerator.taken(reader), reader) for reader in most]
        heapify(wanting)
        while wanting:
            count, reader = heappop(wanting)
            if count < most[reader]:
                enumerator.request(reader)
            now = held[reader] + enumerator.taken(reader)
            if now > count:
                heappush(wanting, (now, reader))

    def _wanted(self, state: BatchRead | None) -> int:
        """Return the number of splits that a reader is to have at the start of the next batch."""
        if state is None:
            return 1 if self._stores else _FEWEST
        held = len(state.splits)
        if held and (self._stores or not state.asks):
            return held + state.asked
        if self._stores:
            return 1
        # One that had too few gets twice as many. Else as many as before, the open one, and one to spare.
        begun = sum(len(poll.begun) for poll in state.polls)
        wanted = begun + 2 if held else max(_FEWEST, 2 * begun)
        return max(min(wanted, _MOST), held + state.asked)

    def _evened(
        self, enumerator: DrivenEnumerator, states: list[BatchRead | None]
    ) -> tuple[dict[int, list[Any]], dict[int, int]]:
        """Return the splits to assign, by reader, and how many others give up for readers that would have none.

        A split is large at times, and nobody else has any left: those that no reader has begun are dealt anew,
        unless it matters to the enumerator who reads them. So are those of a reader that has ended by itself.
        """
        assigned = enumerator.peek()
        given_up: dict[int, int] = {}
        told = self._planned(self._at).no_more if self._at else frozenset()
        mine = {
            reader: state
            for reader, state in enumerate(states)
            # A reader that has been notified that no splits follow ends without those that follow nevertheless.
            if state is not None and not state.ended and (state.queued or reader not in told)
        }
        counts = {reader: len(state.splits) + len(assigned.get(reader, ())) for reader, state in mine.items()}
        if self._stores or not enumerator.assigns_to_any or not mine:
            self._check_received(enumerate(states))
            return assigned, given_up
        # What a reader that has ended by itself has not received, others would have requested.
        for state in states:
            if state is not None and state.ended and state.queued:
                poor = min(counts, key=counts.__getitem__)
                assigned.setdefault(poor, []).extend(_queue_of(state))
                counts[poor] += state.queued
        if all(counts.values()):
            return assigned, given_up
        queues = {reader: _queue_of(state) for reader, state in mine.items()}
        while queued := [reader for reader in mine if queues[reader]]:
            rich, poor = max(queued, key=counts.__getitem__), min(counts, key=counts.__getitem__)
            queue, together = queues[rich], mine[rich].together
            first = len(queue) - 1
            while queue[first].split_id in together:
                first -= 1
            count = len(queue) - first
            if counts[rich] - count < (counts[poor] + count if counts[poor] else 1):
                break
            assigned.setdefault(poor, []).extend(queue[first:])
            del queue[first:]
            given_up[rich] = given_up.get(rich, 0) + count
            counts[rich] -= count
            counts[poor] += count
        return assigned, given_up

    def _check_received(self, states: Iterable[tuple[int, BatchRead | None]]) -> None:
        """Raise ConnectorError if a reader has ended before it received splits that no other reader reads."""
        for reader, state in states:
            if state is not None and state.ended:
                check_all_received(self.source.name, reader, self.readers, [_queue_of(state)])

    def _notified(
        self,
        enumerator: DrivenEnumerator,
        states: list[BatchRead | None],
        assigned: dict[int, list[Any]],
        given_up: dict[int, int],
    ) -> frozenset[int]:
        """Return the readers that are notified that no splits follow.

        None, while a reader may end by itself before it has received all of its splits: others are to take them.
        """
        if self.readers > 1 and not self._stores and enumerator.assigns_to_any:
            for reader, state in enumerate(states):
                fresh = len(assigned.get(reader, ())) - given_up.get(reader, 0)
                held, queued = (0, 0) if state is None or state.ended else (len(state.splits), state.queued)
                if queued + fresh and held + fresh > 1:
                    return frozenset()
        return frozenset(enumerator.no_more)

    def _planned(self, batch: int) -> BatchPlan:
        plan: BatchPlan | None = self._once(batch, PLAN, lambda: self._files.plan(batch))
        if plan is None:
            raise CheckpointError(
                f"the plan of batch {batch} is not in {self._files.where}: a query has to keep the directory for "
                "positions that it started with, complete"
            )
        return plan

    def _states(self, batch: int) -> list[BatchRead | None]:
        if batch == 0:
            return [None] * self.readers
        plan = self._planned(batch)
        found = dict(self._states_of(batch, plan))
        gone = BatchRead((), [], False, True, True)
        return [found.get(reader, gone) for reader in range(self.readers)]

    def _states_of(self, batch: int, plan: BatchPlan) -> list[tuple[int, BatchRead]]:
        states = [(r, self._state_of(batch, r, plan)) for r in range(self.readers) if r not in plan.ended]
        if missing := [reader for reader, state in states if state is None]:
            raise CheckpointError(
                f"the record of reader {missing[0]} in batch {batch} is not in {self._files.where}: a query has "
                "to keep the directory for positions that it started with, complete"
            )
        return [(reader, state) for reader, state in states if state is not None]

    def _state_of(self, batch: int, reader: int, plan: BatchPlan) -> BatchRead | None:
        found: BatchRead | None = self._once(batch, str(reader), lambda: self._files.read(batch, reader))
        before = self._files.read(batch - 1, reader) if found is None and batch > 1 else None
        if found is not None or not self._reads_what_is_left or (before is None and batch > 1):
            return found
        # The consumer wanted no more of this reader's records. What it has left is read here, as the next batch
        # begins behind it.
        rest = BatchReader(self.source, self._work_of(batch, reader, plan, before), self._files)
        try:
            rest.start()
            while not rest.over:
                rest.poll(_MANY)
            return rest.finish()
        finally:
            rest.close()

    def _work_of(self, batch: int, reader: int, plan: BatchPlan, state: BatchRead | None) -> BatchWork:
        fresh = plan.assigned.get(reader, [])
        held = [] if state is None or plan.stops else state.splits
        queued = 0 if state is None or plan.stops else state.queued
        given_up = plan.given_up.get(reader, 0)
        return BatchWork(
            batch=batch,
            reader=reader,
            parallelism=self.readers,
            splits=[*held[: len(held) - given_up], *fresh],
            queued=queued - given_up + len(fresh),
            no_more=reader in plan.no_more,
            resting=reader in plan.resting,
            time_ms=plan.time_ms,
            # With several splits per reader, time since the last batch is no sign of an idle split: its turn to be
            # read may not have come. Only time in which no reader had input counts.
            silent_ms=plan.still_ms if state is not None and len(state.splits) > 1 else plan.since_ms,
            since_ms=plan.since_ms,
            wait_s=plan.wait_s,
            linger_s=plan.linger_s,
            time_s=plan.time_s,
            limit=plan.limit,
            token="" if state is None else state.token,
            asked=state is not None and state.asked and not fresh,
            asks=state is not None and state.asks,
            stops=plan.stops,
            together=plan.together,
            pushed=plan.pushed,
        )

    def _once(self, batch: int, what: str, read: Callable[[], Any]) -> Any:
        """Read an immutable file of the last batches through a cache."""
        found = self._known.get((batch, what))
        if found is None:
            found = read()
            if found is not None:
                # Files are immutable. A plan needs those of its batch and of the one before.
                self._known = {which: known for which, known in self._known.items() if which[0] >= batch - 1}
                self._known[batch, what] = found
        return found

    def _forget_stored(self, before: int, batch: int) -> None:
        """Delete spooled records of forgotten batches, except splits that are still being read."""
        if not self._stores:
            return
        plan = self._files.plan(before - 1)
        if plan is not None:
            stored = {split.file for splits in plan.assigned.values() for split in splits}
            left = {
                split.file
                for state in self._states(batch)
                if state is not None
                for split in state.splits
                if isinstance(split, SpooledSplit)
            }
            self._files.storage.delete(stored - left)


def _queue_of(state: BatchRead) -> list[Any]:
    """Return the splits that a reader has not received."""
    return state.splits[len(state.splits) - state.queued :]


def said(split: Any) -> Any:
    """Return a split as JSON-compatible fields, None if it has others."""
    import msgspec

    try:
        fields = msgspec.to_builtins(split)
        msgspec.json.encode(fields)
    except Exception:
        return None
    return fields if isinstance(fields, dict | list | str | int | float) else None
