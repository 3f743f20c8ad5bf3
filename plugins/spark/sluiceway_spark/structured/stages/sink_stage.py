"""Sink stage of a streaming query: writes each micro-batch, and commits it exactly once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from sluiceway.connector import DeliveryGuarantee, Sink
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError, ConnectorError
from sluiceway.graph.job_graph import JobVertex
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway.runtime.messages.pickling import dump, load
from sluiceway.runtime.microbatch.commit_log import CommitLog, CommitRecord
from sluiceway.runtime.microbatch.sinks import commit_all
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.steps import SinkStep
from sluiceway.util.raising import raise_again
from sluiceway_spark.persisted import SinkProgress
from sluiceway_spark.structured.job_group import users_error
from sluiceway_spark.structured.microbatch.counts import ByStep, increase
from sluiceway_spark.structured.row_format import SCHEMA, Row, together
from sluiceway_spark.structured.stages.chained_sinks import REPLAYED
from sluiceway_spark.structured.stages.driver_sinks import in_this_process
from sluiceway_spark.structured.stages.sink_tasks import (
    DELIVERED,
    Delivered,
    finish_batch,
    open_sink,
    sink_chain,
    sink_task,
)

__all__ = ["BatchReport", "SinkStage", "commit_ready", "commit_sinks"]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Outcome of a micro-batch.

    Attributes:
        batch: its number.
        replayed: whether it was committed before; then nothing was written.
        records: how many records each sink was given, by vertex.
        metrics: the sinks' own metrics by target: as they are now, and what those that count have counted.
        ended: whether the input of all sinks has ended.
        rows: those that are for the driver: of a stage behind the last one.
    """

    batch: int
    replayed: bool
    records: Mapping[int, int]
    metrics: Mapping[int, tuple[ByStep, ByStep]]
    ended: bool
    rows: Sequence[Row] = ()


class SinkStage:
    """Sinks of a streaming query. Used in the driver, from one thread at a time.

    Sinks that hand records to this program work here, one writer for the whole run, and get a micro-batch when all
    the others have written it; these work in Spark's tasks, with a writer for each batch: in those of the stage
    before them where they are chained to it, else in tasks of their own. What they make ready is noted in
    ``<directory>/commits/<batch>`` and then committed; a batch that is noted there and comes again is computed, as
    steps before may have state, and not written.

    Call order: :meth:`open`, :meth:`write` for each micro-batch, :meth:`close` once.

    Args:
        plan: the job.
        directory: place of the run, a path or URL that the drivers of all attempts see.
        services: what plugins give.
        shipped: plan and services for Spark's tasks, from ``ship``.
        slots: how many tasks run at a time.
        owner: names the stream over restarts; None: by the job's name.
        chained: targets of the sinks that are written by the stage before.

    Raises:
        CheckpointError: the directory cannot be read.
        ConfigurationError: it has the commits of another owner.
    """

    def __init__(
        self,
        plan: SteppedPlan,
        directory: str,
        *,
        services: Services,
        shipped: bytes,
        slots: int,
        owner: str | None = None,
        chained: Iterable[int] = (),
    ) -> None:
        self._plan = plan
        self._services = services
        self._shipped = shipped
        self._slots = slots
        self._owner = owner or plan.graph.job_name
        self._log = CommitLog(services.checkpoint_storage(directory))
        self._newest: CommitRecord | None = None
        self._local = in_this_process(plan)
        self._targets = plan.targets_of(plan.last_stage)
        self._chained = frozenset(chained)
        self._chains: dict[int, SteppedTask] = {}
        self._counted: dict[int, tuple[int, ByStep]] = {}  # of those, which go on from batch to batch
        self._now_ms = 0

    @property
    def committed(self) -> int | None:
        """Number of the last batch that is committed, or will be when it comes again; None: none."""
        return None if self._newest is None else self._newest.batch

    @property
    def ended(self) -> bool:
        """Return whether the input of all sinks has ended and is committed."""
        return all(self._name(target) in self._kept.ended for target in self._targets)

    def open(self) -> None:
        """Find out how far the stream has come, commit what is noted, and open the sinks of this process.

        The last batch may have been noted and not committed, and never come again, as the input has ended.
        """
        newest = self._log.newest()
        if newest is not None:
            self._log.check(newest, self._owner)
            commit_ready(self._plan, self._log.ready(newest.batch), self._services)
        self._newest = newest
        for target in self._targets:
            vertex, subtask = self._plan.who(target)
            if vertex in self._local:
                # On what the program itself holds.
                chain = self._chains[target] = sink_chain(self._plan, target, self._services, own=subtask > 0)
                open_sink(chain, self._kept.subtasks.get(self._name(target)))

    def time_of(self, batch: int) -> int:
        """Return the processing time of a batch that is to be written now, ms since the epoch.

        One that was noted has the same again: what else fires in it now would be lost.
        """
        is_noted = self._newest is not None and batch <= self._newest.batch
        self._now_ms = self._kept.now_ms if is_noted else max(self._services.clock.now_ms(), self._kept.now_ms)
        return self._now_ms

    def after(self, batch: int) -> str:
        """Return what chained sinks have to know of a batch that is to be written now."""
        if self._newest is None:
            return "-1"
        return REPLAYED if batch <= self._newest.batch else str(self._newest.batch)

    def write(self, rows: Any, batch: int) -> BatchReport:
        """Run one action over a micro-batch, and commit it.

        Args:
            rows: the DataFrame, of rows of the last stage, and of later ones for the driver.
            batch: its number.

        Raises:
            CheckpointError: the batch before it is not noted, as if the directory had been emptied.
            BaseException: what a sink has raised, with notes; Spark's own troubles as ConnectorError.
        """
        if self._newest is not None and batch <= self._newest.batch:
            return self._replay(rows, batch)
        if batch > (0 if self._newest is None else self._newest.batch + 1):
            raise CheckpointError(
                f"the record of micro-batch {batch - 1} is not in {self._log}: a run has to keep its directory, "
                "complete, and its executors and each of its drivers have to see it"
            )
        delivered, given, others = self._run(rows, batch)
        delivered += self._deliver_here(given, batch)
        kept = self._kept
        names = {one.target: self._name(one.target) for one in delivered}
        record = CommitRecord(
            batch,
            self._owner,
            SinkProgress(
                {**kept.subtasks, **{names[one.target]: one.kept for one in delivered}},
                kept.ended | {names[one.target] for one in delivered if one.ended},
                self._now_ms,
            ),
        )
        ready = [(names[one.target][0], one.ready) for one in delivered if one.ready]
        # The commit point: a driver that dies before has the batch written again, one that dies after finds it in
        # the log and commits it from there.
        self._log.write(record, ready)
        self._newest = record
        commit_ready(self._plan, ready, self._services)
        for chain in self._chains.values():
            chain.completed(batch + 1)
        records: dict[int, int] = {}
        for one in delivered:
            vertex = self._plan.who(one.target)[0]
            records[vertex] = records.get(vertex, 0) + one.records
        metrics = {one.target: (one.metrics, one.counters) for one in delivered if one.metrics}
        return BatchReport(batch, False, records, metrics, self.ended, others)

    def close(self) -> None:
        """Close the sinks of this process."""
        chains, self._chains = self._chains, {}
        for chain in chains.values():
            chain.close()

    def cancel(self) -> None:
        """Have the sinks of this process wait for nothing any more. From any thread."""
        for chain in list(self._chains.values()):
            chain.cancel()

    # ---- inside ---------------------------------------------------------------------------------------------

    @property
    def _kept(self) -> SinkProgress:
        return SinkProgress() if self._newest is None else self._newest.kept

    def _name(self, target: int) -> tuple[str, int]:
        vertex, subtask = self._plan.who(target)
        return self._plan.graph.vertex(vertex).uid, subtask

    def _run(self, rows: Any, batch: int) -> tuple[list[Delivered], list[Row], list[Row]]:
        """Run the sinks in Spark's tasks; return results, rows for sinks of this process, rows for the driver."""
        kept = self._kept
        here = frozenset(t for t in self._targets if t in self._chained or self._plan.who(t)[0] in self._local)
        restored = {
            target: kept.subtasks[self._name(target)]
            for target in self._targets
            if target not in here and self._name(target) in kept.subtasks
        }
        over = frozenset(target for target in self._targets if self._name(target) in kept.ended)
        frame = rows
        if len(here) < len(self._targets):
            frame = together(rows, len(self._targets), self._slots)
            task = sink_task(list(sys.path), self._shipped, batch, dump((here, over, restored)))
            frame = frame.mapInArrow(task, SCHEMA)
        delivered, given, others = [], [], []
        try:
            for found in frame.collect():
                row = Row(*found)
                if row.stage == self._plan.last_stage:
                    given.append(row)
                elif row.stage == self._plan.last_stage + DELIVERED:
                    delivered.append(load(bytes(row.payload)))
                else:
                    others.append(row)
        except BaseException as error:
            self._undo()
            raise_again(users_error(error))
        done = {one.target for one in delivered}
        # Each chained sink reports in each batch. Without this check, records of a task that Spark has left out
        # would be lost.
        if missing := sorted(self._chained - over - done):
            self._undo()
            raise ConnectorError(
                f"sink subtasks {missing} did not report on micro-batch {batch}: Spark has left out tasks of the "
                "stage before them"
            )
        # Tasks end in any order, and the writers of this process count on that of the channels.
        given.sort(key=attrgetter("target", "seq", "sender"))
        return delivered, [row for row in given if row.target not in over], others

    def _deliver_here(self, given: Iterable[Row], batch: int) -> list[Delivered]:
        for row in given:
            self._chains[row.target].feed(row.sender, self._plan.unpack(row.sender, row.payload))
        delivered = []
        for target, chain in self._chains.items():
            one = finish_batch(self._plan, chain, batch)
            records, counters = self._counted.get(target, (0, {}))
            self._counted[target] = (one.records, one.counters)
            delivered.append(
                replace(one, records=one.records - records, counters=increase(one.counters, counters))
            )
        return delivered

    def _replay(self, rows: Any, batch: int) -> BatchReport:
        """Commit a batch that was noted, which may not have been done, and have it computed alone."""
        if batch == self.committed:  # what is before it was committed before it was noted
            commit_ready(self._plan, self._log.ready(batch), self._services)
        last = self._plan.last_stage
        try:
            others = [row for row in (Row(*found) for found in rows.collect()) if row.stage > last]
        except BaseException as error:
            raise_again(users_error(error))
        return BatchReport(batch, True, {}, {}, self.ended, others)

    def _undo(self) -> None:
        """Remove what tasks that were done with it have left of a batch that has failed."""
        for vertex in map(self._plan.graph.vertex, self._plan.sinks):
            if vertex.id not in self._local and _sink(vertex).guarantee is DeliveryGuarantee.EXACTLY_ONCE:
                with suppress(Exception):  # what has failed is told already
                    # A writer that recovers nothing removes what other attempts have left.
                    commit_all(_sink(vertex), (), job_name=self._plan.graph.job_name, uid=vertex.uid)


def commit_ready(plan: SteppedPlan, ready: Iterable[tuple[str, bytes]], services: Services) -> None:
    """Commit what subtasks have made ready, in the driver. Harmless if it comes again.

    Args:
        plan: the job.
        ready: the uid of a sink, and what a subtask of it has made ready, from :class:`Delivered`.
        services: what plugins give.

    Raises:
        Exception: what a sink has raised, with notes.
    """
    by_uid: dict[str, list[Any]] = {}
    for uid, committables in ready:
        by_uid.setdefault(uid, []).extend(load(committables))
    commit_sinks(plan, by_uid, services)


def commit_sinks(plan: SteppedPlan, ready: Mapping[str, Sequence[Any]], services: Services) -> None:
    """As :func:`commit_ready`, with what all subtasks of a sink have made ready, by its uid."""
    for vertex in map(plan.graph.vertex, plan.sinks):
        committables = ready.get(vertex.uid)
        if not committables:
            continue
        try:
            commit_all(
                _sink(vertex),
                committables,
                job_name=plan.graph.job_name,
                uid=vertex.uid,
                clock=services.clock,
            )
        except Exception as error:
            raise explain_failure(error, vertex=vertex.name, step=vertex.head.name, subtask=0, parallelism=1)  # noqa: B904


def _sink(vertex: JobVertex) -> Sink[Any]:
    step = vertex.head.step
    assert isinstance(step, SinkStep)
    return step.sink
