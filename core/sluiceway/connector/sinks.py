"""Contract of sinks, as connectors implement it.

A sink is a *writer* per subtask. None of its methods may block: one without room returns what to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from sluiceway.clock import Clock
from sluiceway.connector.waits import Wait
from sluiceway.metrics import MetricGroup

__all__ = ["CommittingSinkWriter", "DeliveryGuarantee", "Sink", "SinkWriter", "WriterContext"]

T_contra = TypeVar("T_contra", contravariant=True)


class DeliveryGuarantee(Enum):
    """Guarantee of a sink with checkpoints; NONE: after a failure, records may be lost or repeated."""

    NONE = "none"
    AT_LEAST_ONCE = "at-least-once"
    IDEMPOTENT = "idempotent"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Context of a sink writer.

    Attributes:
        subtask: index of the writer.
        parallelism: number of writers.
        clock: the runtime's clock.
        wake: makes the runtime call :meth:`SinkWriter.blocked` soon; may be called from any thread.
        metrics: the writer's own metrics.
        job_name: the pipeline's name.
        uid: uid of the sink's step, which identifies its state.
        has_checkpoints: True if the job takes checkpoints.
        is_restored: True if the job starts from a checkpoint, of an earlier attempt or of an earlier run.
        checkpoint_interval_ms: time between checkpoints; 0: unknown, or the job takes none.
    """

    subtask: int
    parallelism: int
    clock: Clock
    wake: Callable[[], None]
    metrics: MetricGroup
    job_name: str = ""
    uid: str = ""
    has_checkpoints: bool = False
    is_restored: bool = False
    checkpoint_interval_ms: int = 0


class SinkWriter(ABC, Generic[T_contra]):
    """Writer of the records of one subtask. All calls come from the task's thread.

    Call order: :meth:`open`; then :meth:`write` and :meth:`flush`, each only while :meth:`blocked` returns
    None; at the end of input :meth:`finish` and, when no longer blocked, :meth:`close`. After a failure or a
    cancel :meth:`close` alone. :meth:`close` is called exactly once, also if :meth:`open` failed or was not
    called.
    """

    def open(self) -> None:
        """Open what is written to."""

    @abstractmethod
    def write(self, values: Sequence[T_contra], timestamps: Sequence[int] | None) -> None:
        """Write all these records. The lists stay the caller's: copy what is kept.

        Args:
            values: the records.
            timestamps: their event times in ms, or None.

        Raises:
            ConnectorError: they cannot be written; the job fails with it.
        """

    def blocked(self) -> Wait | None:
        """Return None if a :meth:`write` would be accepted now, else what to wait for before the next call."""
        return None

    def flush(self) -> None:
        """Send everything to the external system: at a checkpoint, and when input runs dry.

        What cannot be sent at once makes :meth:`blocked` return a wait until it is sent. May be called at any
        time, also before the first record, and twice in a row.
        """

    def finish(self) -> None:
        """Send what is left and make the output final: the input has ended.

        Called in place of the last :meth:`flush`, never after a failure or a cancel.
        """
        self.flush()

    def close(self) -> None:
        """Free all that was opened; what neither :meth:`flush` nor :meth:`finish` handed on may be dropped."""


class CommittingSinkWriter(SinkWriter[T_contra], ABC):
    """Writer whose output is visible only when a checkpoint is complete (two-phase commit).

    Call order: :meth:`open`, :meth:`recover`; then, between writes, :meth:`prepare_commit` at each checkpoint,
    after a :meth:`flush` and while :meth:`blocked` returns None, and :meth:`commit` when it is complete. An
    aborted checkpoint changes nothing: what it made ready is committed with the next one.

    At the end of the input :meth:`finish` makes nothing visible yet: one more checkpoint follows, with a
    prepare_commit of its own. Where a job has no checkpoints, a prepare_commit with checkpoint 0 and a commit
    follow :meth:`finish` as soon as :meth:`blocked` returns None.
    """

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        """Close the running transaction, and return what will commit it, picklable. First phase, at the barrier.

        What is written from now on belongs to the next transaction.
        """

    @abstractmethod
    def commit(self, committables: Sequence[Any]) -> None:
        """Commit. Second phase. Called again for the same committables after a recovery: must then be harmless."""

    def recover(self, committables: Sequence[Any]) -> None:
        """Commit what the checkpoint that the job is restored from has made ready. Called at every start.

        A writer can also undo what an earlier attempt has left and no completed checkpoint includes.

        Args:
            committables: of this subtask; after a change of the parallelism, of some earlier ones. None of them on
                a first start.
        """
        if committables:
            self.commit(committables)


class Sink(ABC, Generic[T_contra]):
    """Description of where records go, which opens nothing by itself. It can be pickled with cloudpickle.

    ``check`` pickles it, too: a ``__getstate__`` that prepares a target changes nothing where
    :func:`sluiceway.util.trial_pickling.is_trial` returns True.
    """

    @property
    def name(self) -> str:
        """Name in plans."""
        return type(self).__name__

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """Delivery guarantee; the default is at-least-once."""
        return DeliveryGuarantee.AT_LEAST_ONCE

    @property
    def input_type(self) -> Any:
        """Type of its records, or None for any."""
        return None

    def for_columns(self, schema: Any) -> Sink[T_contra]:
        """Return the sink to write rows in columns with; the default is this one.

        Called by ``TableStream.sink()``, before anything runs. A sink that is told the columns can compare them
        with those of its target, at which it may look.

        Args:
            schema: ``pyarrow.Schema`` of the rows.

        Raises:
            ConnectorError: the target cannot be looked at, or does not take such rows.
        """
        return self

    @property
    def max_writers(self) -> int | None:
        """Largest number of writers, at least 1, or None for any number."""
        return None

    @property
    def follows_input(self) -> bool:
        """True for as many writers as the step before has subtasks, unless the program sets a number.

        Then one writer receives the records of a subtask, in their order.
        """
        return False

    @property
    def needs_program(self) -> bool:
        """True if an object of the program's own process commits the output, such as a session.

        Engines whose writers commit in other processes refuse such a sink: ``Feature.PROGRAM_SINKS``.
        """
        return False

    @property
    def commits_once(self) -> bool:
        """True if the sink can commit only once in a run, at its end.

        Engines that would commit checkpoint by checkpoint refuse such a sink: ``Feature.REPLACING_SINKS``.
        """
        return False

    def problems(self, *, checkpoint_interval_ms: int) -> Sequence[str]:
        """Return why the sink cannot run with these options, one sentence each. Opens nothing.

        Each is an error of ``sluiceway check``, and refuses a job before any of it runs.

        Args:
            checkpoint_interval_ms: time between checkpoints; 0: none are taken.
        """
        return ()

    def problems_of_columns(self, schema: Any) -> Sequence[str]:
        """Return why rows with some columns cannot be written, one sentence each. Opens nothing.

        Called by ``TableStream.sink()``, which refuses such rows before anything runs.

        Args:
            schema: the columns, a ``pyarrow.Schema``.
        """
        return ()

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[T_contra]:
        """Make the writer of one subtask."""
