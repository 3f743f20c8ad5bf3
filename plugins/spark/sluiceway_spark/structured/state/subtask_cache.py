"""Cache of subtasks in a Python worker: restored from Spark's state store, kept for the next micro-batch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol

from sluiceway.clock import Clock, SystemClock
from sluiceway.elements import MIN_WATERMARK
from sluiceway.engine import Services
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.serializers.program_classes import using
from sluiceway.state.changelog import ChangelogStateBackend
from sluiceway.util.garbage_collector import seldom
from sluiceway_spark.structured.microbatch.counts import NOTHING, Counts, counts_of
from sluiceway_spark.structured.microbatch.metrics import did_since, told
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.row_packing import RowPacker
from sluiceway_spark.structured.stages.chained_sinks import ChainedSinks
from sluiceway_spark.structured.state.state_log import LogWriter, saved

__all__ = ["Cache", "Kept"]

_REAL: Final = SystemClock()
_STALE: Final = 8
"""A subtask that was not here for so many micro-batches is at work in another process."""
_STALE_PLAN: Final = 1
"""The same for subtasks of the run's other plans: one that a later query has replaced is not to hold memory."""
_UNUSED_S: Final = 600.0
"""After that the query of another run is taken to be over."""


class Kept(Protocol):
    """State of one subtask in Spark's store; each call is a round trip to the JVM."""

    def token(self, *, is_there: bool) -> str | None:
        """Latest value of :meth:`set_token` from an attempt that succeeded.

        Args:
            is_there: whether there is one, as far as is known: Spark's log has a line for each that is not.
        """

    def set_token(self, token: str) -> None:
        """Name the state that is there now."""

    def records(self) -> list[bytes]:
        """Return the log."""

    def append(self, record: bytes) -> None:
        """Add to the log."""

    def replace(self, record: bytes) -> None:
        """Begin the log anew."""


@dataclass(slots=True)
class _Live:
    """Subtask in this process.

    Attributes:
        chain: itself.
        backend: makes its state.
        log: writes the log.
        token: that of the state that it has.
        batch: the last micro-batch that it has seen.
        told: the last that it was told to be complete.
        used: when it was used last, in monotonic seconds.
        counts: that were told of.
        watermark: that was told of.
        due_ms: that was told of; 0: none was.
    """

    chain: SteppedTask
    backend: ChangelogStateBackend
    log: LogWriter
    token: str | None
    batch: int
    told: int
    used: float
    counts: Counts = NOTHING
    watermark: int = MIN_WATERMARK
    due_ms: int | None = 0


class Cache:
    """Cache of the subtasks of this process.

    Partitions move between processes, and attempts fail. So a subtask here is good only as long as its token is
    the one that Spark's store has: a random one, for a number could come twice. It is good for its plan alone: a
    later query over the same state may have other functions, and a query may have several plans, whose subtasks
    have the same numbers.

    Args:
        clock: processing time.
        services: what plugins give; called once, when a subtask is made.
    """

    def __init__(self, clock: Clock, services: Callable[[], Services | None]) -> None:
        self._clock = clock
        self._services = services
        self._live: dict[tuple[str, int, int], _Live] = {}  # by run, program of the plan, and target
        self._run = ""
        self._batch = -1
        self.misses = 0

    def process(
        self,
        run: str,
        plan: SteppedPlan,
        target: int,
        batch: int,
        rows: Iterable[Row],
        kept: Kept,
        sinks: ChainedSinks | None = None,
    ) -> Iterator[Row]:
        """Process the rows of a micro-batch for a subtask.

        Args:
            run: the query's run.
            plan: the job.
            target: number of the subtask.
            batch: number of the micro-batch.
            rows: for this subtask, in any order.
            kept: what Spark keeps of it.
            sinks: what takes the elements for sinks that are chained to the stage; None: none are.

        Returns:
            rows for later stages. All has been done when the first is there.

        Raises:
            Exception: what a user's function has raised, with notes.
        """
        self._sweep(run, plan.program, batch)
        which = run, plan.program, target
        live = self._find(which, plan, batch, kept)
        try:
            with seldom():
                out = self._work(live, plan, target, batch, rows, kept, sinks)
        except BaseException:
            self._drop(which)
            raise
        return iter(out)

    def close(self) -> None:
        """Close all."""
        for which in list(self._live):
            self._drop(which)

    # ---- inside -------------------------------------------------------------------------------------------

    def _find(self, which: tuple[str, int, int], plan: SteppedPlan, batch: int, kept: Kept) -> _Live:
        live = self._live.get(which)
        token = kept.token(is_there=live is not None and live.token is not None)
        if live is not None and live.token == token:
            # Spark begins with a micro-batch when the one before is committed.
            if live.told < live.batch < batch:
                # Checkpoints count from 1, micro-batches from 0.
                live.chain.completed(live.batch + 1)
                live.told = live.batch
            live.used = self._clock.monotonic()
            return live
        self._drop(which)
        self.misses += 1
        backend = ChangelogStateBackend(keep=False)
        vertex, subtask = plan.who(which[2])
        chain = SteppedTask(
            plan,
            vertex,
            subtask,
            state_backend=backend,
            clock=self._clock,
            services=self._services(),
            calls_clock=_REAL,
        )
        records = [] if token is None else kept.records()
        log = LogWriter([len(record) for record in records])
        try:
            if records:
                with using(plan.classes):
                    found = saved(records)
                log.begin_with(found)
                chain.open(found.operators, found.position)
                chain.take()  # what it has sent before the last micro-batch was over
            else:
                chain.open()
        except BaseException:
            with suppress(Exception):
                chain.close()
            raise
        live = self._live[which] = _Live(chain, backend, log, token, batch - 1, batch - 1, self._clock.monotonic())
        return live

    def _work(
        self,
        live: _Live,
        plan: SteppedPlan,
        target: int,
        batch: int,
        rows: Iterable[Row],
        kept: Kept,
        sinks: ChainedSinks | None,
    ) -> Sequence[Row]:
        chain = live.chain
        if chain.ended:
            live.batch = batch
            return list(self._signs_of_life(plan, target, set(), sinks))
        # A shuffle of Spark keeps no order: it is restored from the numbers that senders have given.
        ordered = sorted(rows, key=attrgetter("sender", "seq"))
        for sender, some in groupby(ordered, key=attrgetter("sender")):
            chain.feed(sender, (element for row in some for element in plan.unpack(sender, row.payload)))
        if not chain.ended:
            chain.settle()
        out: list[Row] = []
        packer = RowPacker(plan)
        for stage, to, sender, seq, elements in chain.take():
            if sinks is not None and to in sinks:
                sinks.feed(to, sender, elements)
            else:
                out += packer.pack(stage, to, sender, seq, elements)
        out += self._signs_of_life(plan, target, {row.target for row in out}, sinks)
        did = did_since(plan, chain, live.counts)
        if did.records_in or (chain.watermark, did.due_ms) != (live.watermark, live.due_ms):
            out.append(told(plan, did))
            live.counts, live.watermark = counts_of(chain), chain.watermark
            live.due_ms = did.due_ms
        self._keep(live, batch, kept)
        live.batch = batch
        return out

    def _keep(self, live: _Live, batch: int, kept: Kept) -> None:
        whole = live.backend.whole = live.log.wants_all
        taken = live.chain.snapshot(batch + 1)
        record = live.log.record(live.chain.position(), taken, whole=whole)
        if record is None:
            return
        (kept.replace if whole else kept.append)(record)
        # A new token for each change of the state, and only then: unchanged state stays good where it is cached.
        token = uuid.uuid4().hex
        kept.set_token(token)
        live.token = token

    def _signs_of_life(
        self, plan: SteppedPlan, target: int, reached: set[int], sinks: ChainedSinks | None
    ) -> Iterator[Row]:
        """Yield empty rows, so that Spark calls every subtask in each micro-batch.

        Of the producers of a subtask along an edge one does that, the same in each micro-batch.
        """
        vertex, subtask = plan.who(target)
        for route in plan.routes_from(vertex, subtask):
            if route.target in reached or (sinks is not None and route.target in sinks):
                continue
            producers = plan.producers_along(route)
            if producers[route.target % len(producers)] == subtask:
                yield Row(route.stage, route.target, route.sender, 0, b"")

    def _sweep(self, run: str, program: int, batch: int) -> None:
        if (run, batch) == (self._run, self._batch):
            return
        self._run, self._batch = run, batch
        long_ago = self._clock.monotonic() - _UNUSED_S
        for which, live in list(self._live.items()):
            stale = _STALE if which[1] == program else _STALE_PLAN
            if live.batch < batch - stale if which[0] == run else live.used < long_ago:
                self._drop(which)

    def _drop(self, which: tuple[str, int, int]) -> None:
        live = self._live.pop(which, None)
        if live is not None:
            with suppress(Exception):  # it is at work elsewhere, or has failed already
                live.chain.close()
