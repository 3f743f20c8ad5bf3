"""Operator of the sink at the end of a chain."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from sluiceway.connector import CommittingSinkWriter, SinkWriter, Wait, WriterContext
from sluiceway.connector.products import checked, listed, waited
from sluiceway.elements import Batch, Element, LatencyMarker, Watermark
from sluiceway.errors import IncompatibleStateError
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.record_errors import record_loop
from sluiceway.steps import SinkStep
from sluiceway.util.overriding import override

__all__ = ["SinkOperator"]


class SinkOperator(Operator):
    """Operator that drives a sink writer; it writes nothing while the writer is blocked."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, SinkStep)
        self._sink = step.sink
        self._writer: SinkWriter[Any] | None = None
        self._restored: tuple[Any, ...] = ()
        # Written since the last flush; and whether a flush has begun that the external system has not confirmed.
        self._dirty = False
        self._flushing = False
        # Committables by checkpoint, until a completed one covers them. A savepoint that the job goes on after is
        # never notified: what it made ready is committed with the next checkpoint, or at the end.
        self._ready: dict[int, tuple[Any, ...]] = {}
        self._commits_at_end = False
        # Batches that came while the writer was blocked: a step before the sink may make several of one.
        self._waiting: deque[Batch[Any]] = deque()
        self._unfinished = False
        self.records = 0

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Create the writer, which may have state; restored committables are committed once it is open."""
        context = self.context
        writer = self._sink.create_writer(
            WriterContext(
                subtask=context.subtask,
                parallelism=context.node.parallelism,
                clock=context.clock,
                wake=context.wake,
                metrics=context.metrics,
                job_name=context.job_name,
                uid=context.node.uid,
                has_checkpoints=bool(context.settings.checkpoint_interval_ms),
                is_restored=bool(restored),
                checkpoint_interval_ms=context.settings.checkpoint_interval_ms or 0,
            )
        )
        self._writer = checked(writer, SinkWriter, self._sink, "create_writer")

        # Each earlier subtask's committables go to exactly one subtask, whatever the parallelism is now.
        mine = [s for s in restored if s.subtask % context.node.parallelism == context.subtask]
        self._restored = tuple(c for s in mine for c in s.committables)

    @property
    def commits(self) -> bool:
        """True if the writer, once created, makes its output visible in two phases."""
        return isinstance(self._writer, CommittingSinkWriter)

    @override
    def checkpointed(self, context: OperatorContext) -> Iterable[object]:
        return (self._writer,)

    def open(self) -> None:
        """Open the writer."""
        writer, restored = self._writer, self._restored
        assert writer is not None
        self._restored = ()
        if isinstance(writer, CommittingSinkWriter):
            writer.open()
            self._recover(writer, restored)
            return
        if restored and not self.context.settings.allow_dropped_state:
            raise IncompatibleStateError(
                f"output of {self._shown} that the checkpoint has ready to be committed would be lost: the sink "
                "commits nothing any more. Run the job as it was and stop it with a savepoint, which commits that "
                "output; begin with the savepoint and allow-dropped-state, which leaves behind what is ready"
            )
        writer.open()

    @property
    def _shown(self) -> str:
        return f"sink {self._sink.name!r}, uid {self.context.node.uid!r},"

    def _recover(self, writer: CommittingSinkWriter[Any], committables: Sequence[Any]) -> None:
        settings = self.context.settings
        begins_with_checkpoint = settings.from_checkpoint is not None or settings.resume
        try:
            writer.recover(committables)
        except (AttributeError, TypeError, ValueError) as error:
            # A restart commits what the sink has made ready itself; only the first attempt may meet another one's.
            if self.context.attempt or not begins_with_checkpoint or not committables:
                raise
            raise IncompatibleStateError(
                f"{self._shown} cannot commit the output that the checkpoint has ready for that uid: "
                f"{type(error).__name__}: {error}. If another sink has written it, give this one another uid, "
                "with .uid(...)"
            ) from error

    @record_loop  # blocked() may raise as well, and a message names this step
    @override
    def process(self, batch: Batch[Any]) -> None:
        self._dirty = True
        self.records += len(batch.values)
        if self._waiting or self.blocked() is not None:
            self._waiting.append(batch)
        else:
            self._write(batch)

    @record_loop
    def _write(self, batch: Batch[Any]) -> None:
        assert self._writer is not None
        self._writer.write(batch.values, batch.timestamps)

    @property
    @override
    def waiting(self) -> int:
        return len(self._waiting)

    def control(self, element: Element) -> None:
        """Drop watermarks and markers, whose way ends here."""
        if type(element) is Watermark:
            self.current_watermark = element.timestamp
        elif type(element) is LatencyMarker:
            self.record_latency(element)

    def blocked(self) -> Wait | None:
        """Return the wait of the writer; or None, once it has all batches."""
        writer = self._writer
        if writer is None:
            return None
        wait = waited(writer.blocked(), writer)
        while wait is None and self._waiting:
            self._write(self._waiting.popleft())
            wait = waited(writer.blocked(), writer)
        return wait

    def idle(self) -> None:
        """Flush once when the input is empty after a write."""
        if self._dirty and self._writer is not None and self.blocked() is None:
            self._flush()

    def _flush(self) -> None:
        assert self._writer is not None
        self._dirty, self._flushing = False, True
        self._writer.flush()

    def before_barrier(self) -> None:
        """Flush the records written."""
        self.idle()

    def pending_before_snapshot(self) -> Wait | None:
        """Return the wait until the external system has every record written."""
        # A writer with two phases is always waited for: prepare_commit() may not be called while it is blocked.
        settles = self._dirty or self._flushing or isinstance(self._writer, CommittingSinkWriter)
        wait = self.blocked() if settles else None
        if wait is None and self._dirty:  # it was blocked when it was to be flushed
            self._flush()
            wait = self.blocked()
        self._flushing = wait is not None and self._flushing
        return wait

    def snapshot(self) -> OperatorSnapshot:
        """Return the committables of the output that is ready, with those of earlier checkpoints."""
        writer, uid = self._writer, self.context.node.uid
        if not isinstance(writer, CommittingSinkWriter):
            return OperatorSnapshot(uid)
        # Snapshots that no coordinator has triggered all have id 0, so that their committables add up.
        self._ready[self.checkpoint_id] = (
            *self._ready.get(self.checkpoint_id, ()),
            *_prepared(writer, self.checkpoint_id),
        )
        # All that is not committed, not only this checkpoint's: a job restored from it has to commit the rest,
        # too.
        return OperatorSnapshot(uid, committables=tuple(c for some in self._ready.values() for c in some))

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Commit the output that was ready at that checkpoint."""
        super().checkpoint_completed(checkpoint_id)
        # Older checkpoints are covered, too: they may have been aborted, or their notification lost.
        ready = sorted(id_ for id_ in self._ready if id_ <= checkpoint_id)
        committables = [c for id_ in ready for c in self._ready[id_]]
        if committables and isinstance(self._writer, CommittingSinkWriter):
            self._writer.commit(committables)
        for id_ in ready:
            del self._ready[id_]

    def finish(self) -> None:
        """Flush everything to the external system."""
        # With an interval one more checkpoint follows the end of the input, whose completion commits.
        self._commits_at_end = not self.context.settings.checkpoint_interval_ms
        self._unfinished = True
        if not self._waiting:
            self._finish_writer()

    def _finish_writer(self) -> None:
        assert self._writer is not None
        self._dirty = self._unfinished = False
        self._writer.finish()

    def settling(self) -> Wait | None:
        """Return the wait of the writer; once there is none, commit the output if no checkpoint follows."""
        wait = self.blocked()
        if wait is None and self._unfinished:
            self._finish_writer()
            wait = self.blocked()
        if wait is None and self._commits_at_end and isinstance(self._writer, CommittingSinkWriter):
            self._commits_at_end = False
            last = _prepared(self._writer, 0)
            self._writer.commit([*(c for some in self._ready.values() for c in some), *last])
            self._ready.clear()
        return wait

    @override
    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _prepared(writer: CommittingSinkWriter[Any], checkpoint_id: int) -> Sequence[Any]:
    return listed(writer.prepare_commit(checkpoint_id), writer, "prepare_commit", "committables")
