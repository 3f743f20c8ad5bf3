"""Writing and committing one batch of records with a sink."""

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
"""Parallelism of writers whose number is unknown: an upper bound."""


@dataclass(frozen=True)
class WriterPlace:
    """Identity of a writer: job, sink and subtask.

    Attributes:
        job_name: name of the job.
        uid: uid of the sink; a writer may abort transactions left by the same job and uid.
        subtask: index of the writer.
        parallelism: number of writers, or :data:`MANY`.
    """

    job_name: str
    uid: str = "sink"
    subtask: int = 0
    parallelism: int = MANY


@dataclass(frozen=True)
class Written:
    """Result of one writer for one batch; picklable as far as the sink's committables are.

    Attributes:
        subtask: index of the writer.
        records: number of records written.
        committables: committables, for one commit of all writers of the batch; empty for sinks without two phases.
        kept: state of the writer for the next batch.
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
    """Open a writer, write the records, prepare their commit, and close it. Blocks while the writer does.

    Args:
        sink: the sink.
        place: identity of the writer.
        batches: the records.
        checkpoint_id: number of the batch, at least 1; the same for each retry.
        restored: state kept by the writers of earlier batches; None: this is the first batch.
        is_noted: whether committables and kept state are stored, to be committed by :func:`commit_all`.
        last: whether this is the last batch.
        clock: clock of the writer.

    Raises:
        ConfigurationError: more writers than the sink allows, or the sink has committables or state and
            ``is_noted`` is false.
    """
    most = sink.max_writers
    if most is not None and place.subtask >= most:
        raise ConfigurationError(
            f"sink {sink.name!r} takes at most {most} writers, and there are more partitions: call "
            f"coalesce({most}) before writing"
        )
    # Committables of earlier batches were committed from the log, so that only state is restored. The empty
    # snapshot makes the writer a restored one also where no writer has kept state.
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
    """Commit the committables of all writers of a batch, and abort other transactions that they left.

    Called in the driver, while no writer runs. Idempotent; without committables it only aborts.
    """
    place = WriterPlace(job_name, uid, 0, 1)
    # A sink that is restored commits what it is restored with, and aborts all else of the same job and uid.
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
            settings=Settings(checkpoint_interval_ms=1),  # without checkpoints, finish() would commit
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
    """Sleep until the wait may be over; a wake-up, also an earlier one, ends it."""
    timeout = None if wait.until is None else max(wait.until - clock.monotonic(), 0.0)
    if wait.fileno is not None:
        poller.watch(wait, wait, lambda: None)
    try:
        poller.poll(timeout)
    finally:
        poller.forget(wait)
