"""Exactly-once writing of batches that another engine drives, split between its tasks and its driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Sink
from sluiceway.elements import Batch
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.microbatch.commit_log import CommitLog, CommitRecord
from sluiceway.runtime.microbatch.sinks import WriterPlace, Written, commit_all, write_batch

__all__ = ["SingleBatch", "StreamOfBatches"]


@dataclass(frozen=True)
class SingleBatch:
    """One batch job, appended to a sink exactly once.

    Attributes:
        sink: the sink.
        job_name: name of the job, whose earlier transactions may be aborted.
    """

    sink: Sink[Any]
    job_name: str

    def write(self, subtask: int, batches: Iterable[Batch[Any]], clock: Clock | None = None) -> Written:
        """Write a partition, in a task. A retried task aborts the transactions of its earlier attempts."""
        # Restored with nothing: so the writer aborts what earlier attempts have left.
        place = WriterPlace(self.job_name, subtask=subtask)
        return write_batch(self.sink, place, batches, checkpoint_id=1, restored=(), last=True, clock=clock)

    def commit(self, written: Sequence[Written], clock: Clock | None = None) -> None:
        """Commit, in the driver, after all tasks. If it raises, some of the output may be committed."""
        commit_all(self.sink, _committables(written), job_name=self.job_name, clock=clock)

    def abort(self, clock: Clock | None = None) -> None:
        """Abort uncommitted output after a failure, in the driver, where the sink can."""
        commit_all(self.sink, (), job_name=self.job_name, clock=clock)


@dataclass(frozen=True)
class StreamOfBatches:
    """Stream of numbered batches, each of which may be retried by the same or a later driver.

    Tasks call :meth:`write`; afterwards the driver calls :meth:`commit`, or :meth:`abort`.

    Attributes:
        sink: the sink.
        owner: name of the stream over restarts; no other stream may use the log.
        log: commit log; None: retried batches are written again.
        name: job name of the writers, whose earlier transactions may be aborted; empty: one made of the owner.
    """

    sink: Sink[Any]
    owner: str
    log: CommitLog | None
    name: str = ""

    @property
    def job_name(self) -> str:
        """Job name of the writers."""
        return self.name or f"stream-{self.owner}"

    def write(
        self,
        number: int,
        subtask: int,
        batches: Iterable[Batch[Any]],
        *,
        newest: CommitRecord | None = None,
        clock: Clock | None = None,
    ) -> Written | None:
        """Write a partition of a batch, in a task. Return None if the batch is committed already.

        Args:
            number: number of the batch, from 0.
            subtask: index of the partition.
            batches: the records; consumed to the end also if nothing is written.
            newest: newest record of the log when the tasks were planned; if it is older than the previous batch,
                the log is read here.
            clock: clock of the writer.

        Raises:
            ConfigurationError: the log belongs to another owner, or the sink needs a log and there is none.
        """
        latest = newest
        if self.log is not None:
            if latest is None or latest.batch < number - 1:
                latest = self.log.newest()
            if latest is not None:
                self.log.check(latest, self.owner)
        if latest is not None and number <= latest.batch:
            for _ in batches:
                pass
            return None
        # Without a log, a batch that is not the first follows others, of which nothing is known here: its writers
        # count as restored ones, with nothing to restore.
        kept = self._kept(latest)
        return write_batch(
            self.sink,
            WriterPlace(self.job_name, subtask=subtask),
            batches,
            checkpoint_id=number + 1,
            restored=None if latest is None and (self.log is not None or number == 0) else list(kept.values()),
            is_noted=self.log is not None,
            clock=clock,
        )

    def commit(self, number: int, written: Sequence[Written | None], clock: Clock | None = None) -> None:
        """Commit a batch, in the driver, after all tasks. Idempotent.

        Raises:
            CheckpointError: the log cannot be written; nothing is committed.
        """
        log = self.log
        if log is None:
            return
        latest = log.newest()
        if latest is not None:
            log.check(latest, self.owner)
        if latest is None or latest.batch < number:
            done = [one for one in written if one is not None]
            # A partition without data in this batch keeps its writer's state of an earlier one.
            kept = {**self._kept(latest), **{one.subtask: one.kept for one in done}}
            # The decision: from here on the batch is committed, if not by this driver then by the next one.
            log.write(CommitRecord(number, self.owner, kept), _committables(done))
        if latest is None or latest.batch <= number:
            self._commit_noted(log, number, clock)

    def abort(self, number: int, clock: Clock | None = None) -> None:
        """Abort a failed batch, in the driver, where the sink can.

        If :meth:`commit` has failed after it wrote the log, the batch is committed instead.
        """
        log = self.log
        if log is None:
            return
        latest = log.newest()
        if latest is not None:
            log.check(latest, self.owner)
        if latest is None or latest.batch < number:
            commit_all(self.sink, (), job_name=self.job_name, clock=clock)
        elif latest.batch == number:
            self._commit_noted(log, number, clock)

    def _commit_noted(self, log: CommitLog, number: int, clock: Clock | None) -> None:
        """Commit the newest record of the log.

        Older ones need no commit: a record is written only after the previous batch was committed.
        """
        ready = log.ready(number)
        if ready:
            commit_all(self.sink, ready, job_name=self.job_name, clock=clock)

    def _kept(self, latest: CommitRecord | None) -> Mapping[int, OperatorSnapshot]:
        kept: Mapping[int, OperatorSnapshot] = {} if latest is None else latest.kept
        return kept


def _committables(written: Iterable[Written]) -> list[Any]:
    return [
        committable for one in sorted(written, key=lambda one: one.subtask) for committable in one.committables
    ]
