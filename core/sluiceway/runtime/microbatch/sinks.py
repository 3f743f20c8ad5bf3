"""One batch of records through a sink's writer, and what commits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from sluiceway.clock import Clock, SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector import Sink, Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorContext, OperatorSnapshot, SinkOperator
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend
from sluiceway.steps import SinkStep
from sluiceway.streamgraph import StreamNode

__all__ = ["MANY", "WriterPlace", "Written", "commit_all", "write_batch"]

MANY: Final = 1 << 20
"""The parallelism of writers that are not told how many of them there are: more than there will ever be."""


@dataclass(frozen=True)
class WriterPlace:
    """Which writer of which sink of which job.

    Attributes:
        job_name: name of the job.
        uid: of the sink; with the job's name it says whose leftovers a writer may take away.
        subtask: index of the writer.
        parallelism: how many there are, or :data:`MANY`.
    """

    job_name: str
    uid: str = "sink"
    subtask: int = 0
    parallelism: int = MANY


@dataclass(frozen=True)
class Written:
    """What one writer has done with a batch; picklable as far as the sink's committables are.

    Attributes:
        subtask: index of the writer.
        records: how many it was given.
        committables: what commits them, once for all writers of the batch; empty for sinks without two phases.
        kept: what the writer is to find when the next batch comes.
    """

    subtask: int
    records: int
    committables: tuple[Any, ...]
    kept: OperatorSnapshot


def write_batch(
    sink: Sink[Any],
    place: WriterPlace,
    batches: Iterable[Batch[Any]],
    *,
    checkpoint_id: int,
    restored: Sequence[OperatorSnapshot] | None = None,
    is_noted: bool = True,
    last: bool = False,
    clock: Clock | None = None,
) -> Written:
    """Open a writer, write, have it make ready what was written, and close it. Blocks while the writer does.

    Args:
        sink: makes the writer.
        place: which one it is.
        batches: the records.
        checkpoint_id: number of the batch, at least 1; the same for a batch that comes again.
        restored: what the writers of earlier batches have kept; None: this is the first one.
        is_noted: whether what it makes ready and keeps is noted somewhere, to be committed by :func:`commit_all`.
        last: whether no batch follows.
        clock: the writer's.

    Raises:
        ConfigurationError: there are more writers than the sink takes, or it has something to be noted.
    """
    most = sink.max_writers
    if most is not None and place.subtask >= most:
        raise ConfigurationError(
            f"sink {sink.name!r} takes at most {most} writers, and there are more partitions: call "
            f"coalesce({most}) before writing"
        )
    # What was restored is committed already.
    begin_with = [] if restored is None else [OperatorSnapshot(place.uid), *restored]
    with _writer(sink, place, begin_with, clock or SystemClock()) as (operator, wait):
        if not is_noted and (operator.commits or operator.has_state):
            what = "commits what it has written" if operator.commits else "has state"
            raise ConfigurationError(
                f"sink {sink.name!r} {what}, and there is no place to note that: set the option commits to a "
                "directory that the driver sees at each start"
            )
        for batch in batches:
            wait(operator.blocked)
            operator.process(batch)
        wait(operator.blocked)
        if last:
            operator.finish()
            wait(operator.blocked)
        operator.before_barrier()
        wait(operator.pending_before_snapshot)
        [snapshot] = operator.snapshots(checkpoint_id)
        kept = replace(snapshot, committables=(), subtask=place.subtask, parallelism=place.parallelism)
        return Written(place.subtask, operator.records, snapshot.committables, kept)


def commit_all(
    sink: Sink[Any], committables: Sequence[Any], *, job_name: str, uid: str = "sink", clock: Clock | None = None
) -> None:
    """Commit what all writers of a batch have made ready, and undo what else they have left; in the driver.

    While no writer is at work. Harmless if it comes again; without committables, it only undoes.
    """
    place = WriterPlace(job_name, uid, 0, 1)
    restored = [OperatorSnapshot(uid, committables=tuple(committables))]
    with _writer(sink, place, restored, clock or SystemClock()) as (operator, wait):
        wait(operator.pending_before_snapshot)


@contextmanager
def _writer(
    sink: Sink[Any], place: WriterPlace, restored: Sequence[OperatorSnapshot], clock: Clock
) -> Iterator[tuple[SinkOperator, Any]]:
    node = StreamNode(
        0, place.uid, True, sink.name, SinkStep(sink), parallelism=place.parallelism, max_parallelism=MANY
    )
    poller = SelectorPoller()

    def wait(asked: Any) -> None:
        while (found := asked()) is not None:
            _sleep(poller, found, clock)

    operator = SinkOperator(
        OperatorContext(
            node=node,
            job_name=place.job_name,
            subtask=place.subtask,
            attempt=0,
            key_groups=KeyGroupRange(0, 0),
            clock=clock,
            state_backend=_NoBackend(),
            wake=poller.wake,
            settings=Settings(checkpoint_interval_ms=1),  # nothing is committed before somebody says so
        )
    )
    try:
        operator.initialize(restored)
        operator.open()
        yield operator, wait
    finally:
        try:
            operator.close()
        finally:
            poller.close()


class _NoBackend(StateBackend):
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        raise StateError("a sink's writer has no keyed state")


def _sleep(poller: SelectorPoller, wait: Wait, clock: Clock) -> None:
    """Until it may be over; a wake-up, also an earlier one, ends it."""
    timeout = None if wait.until is None else max(wait.until - clock.monotonic(), 0.0)
    if wait.fileno is not None:
        poller.watch(wait, wait, lambda: None)
    try:
        poller.poll(timeout)
    finally:
        poller.forget(wait)
