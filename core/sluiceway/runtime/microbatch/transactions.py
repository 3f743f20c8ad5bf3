"""What tasks and the driver do so that every batch of an engine that is not ours is written once."""

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
    """Records that are written once, in addition to what is there.

    Attributes:
        sink: where to.
        job_name: whose leftovers may be taken away.
    """

    sink: Sink[Any]
    job_name: str

    def write(self, subtask: int, batches: Iterable[Batch[Any]], clock: Clock | None = None) -> Written:
        """In a task: write a part. A task that is tried again undoes what it had left behind before."""
        place = WriterPlace(self.job_name, subtask=subtask)
        return write_batch(self.sink, place, batches, checkpoint_id=1, restored=(), last=True, clock=clock)

    def commit(self, written: Sequence[Written], clock: Clock | None = None) -> None:
        """In the driver, when all tasks are done. What it had committed when it raised may be there already."""
        commit_all(self.sink, _committables(written), job_name=self.job_name, clock=clock)

    def abort(self, clock: Clock | None = None) -> None:
        """In the driver, when something has failed: undo what was not committed, where the sink can."""
        commit_all(self.sink, (), job_name=self.job_name, clock=clock)


@dataclass(frozen=True)
class StreamOfBatches:
    """Batches by number, each of which may come again, from the same driver or a later one.

    In the driver :meth:`newest` before the tasks of a batch, :meth:`commit` behind them, or :meth:`abort`.

    Attributes:
        sink: where to.
        owner: names the stream over restarts; no other one may use the log.
        log: of the commits; None: batches that come again are written again.
        name: whose leftovers may be taken away; empty: the owner's.
    """

    sink: Sink[Any]
    owner: str
    log: CommitLog | None
    name: str = ""

    @property
    def job_name(self) -> str:
        """What writers are told."""
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
        """In a task: write a part of a batch. None: the batch is committed already, nothing was written.

        Args:
            number: of the batch, from 0.
            subtask: which part.
            batches: the records; they are taken to their end also where nothing is written.
            newest: record of the log when the tasks were planned; where the batch before is not in it, the log is
                asked here.
            clock: the writer's.

        Raises:
            ConfigurationError: the log is another owner's, or the sink needs one and there is none.
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
        """In the driver, when all tasks are done, as often as the batch comes.

        Raises:
            CheckpointError: it cannot be noted; then nothing is committed.
        """
        log = self.log
        if log is None:
            return
        latest = log.newest()
        if latest is not None:
            log.check(latest, self.owner)
        if latest is None or latest.batch < number:
            done = [one for one in written if one is not None]
            # Parts that a batch does not have keep what they had.
            kept = {**self._kept(latest), **{one.subtask: one.kept for one in done}}
            log.write(CommitRecord(number, self.owner, kept), _committables(done))
        if latest is None or latest.batch <= number:
            self._commit_noted(log, number, clock)

    def abort(self, number: int, clock: Clock | None = None) -> None:
        """In the driver, when the batch has failed: undo what will not be committed, where the sink can.

        Also when :meth:`commit` has failed, halfway: what is noted will be committed.
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
        """For the newest record alone: what is before it was committed before that was written."""
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
