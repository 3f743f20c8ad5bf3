"""Tasks of a batch job: the subtasks of a group of stages, run one after the other in a Python worker."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sluiceway.engine import Services
from sluiceway.runtime.messages.pickling import dump, dump_error, load
from sluiceway.runtime.microbatch.driven_enumerator import Dealt, SplitsInTurn
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.serializers.program_classes import ProgramClasses
from sluiceway.steps import SinkStep
from sluiceway.util.garbage_collector import freeze_between_tasks, seldom
from sluiceway.util.overriding import override
from sluiceway_spark.structured.row_format import Row, rows_in, to_batches
from sluiceway_spark.structured.row_packing import FULL, MANY, RowPacker
from sluiceway_spark.structured.stages.large_plans import PlanFile, bytes_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FAILED",
    "Outcome",
    "RecentPlans",
    "StageWorker",
    "SubtaskFailedError",
    "load_plan",
    "sent",
    "ship",
    "source_task",
    "stage_task",
]

FAILED: Final = r"sluiceway-failed ([A-Za-z0-9+/=]+)\."
"""Finds in what Spark says what :class:`SubtaskFailedError` said."""

_RECENT: Final = 4
"""Plans that a process keeps."""


class SubtaskFailedError(RuntimeError):
    """A subtask failed. The message holds the pickled exception, which the driver extracts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a subtask, sent to the driver.

    Attributes:
        target: its number.
        records_in: records read or taken.
        records_out: records given to other subtasks.
        records_to_sinks: records written.
        metrics: the functions' own, by step and name.
        ready: what is to be committed.
    """

    target: int
    records_in: int
    records_out: int
    records_to_sinks: int
    metrics: dict[str, dict[str, float]]
    ready: tuple[Any, ...] = ()


def ship(plan: SteppedPlan, services: Services) -> bytes:
    """Return plan and services, pickled for Python workers.

    Tables of sinks that commit by the session are looked up before: workers have none.

    Raises:
        SerializationError: they cannot be pickled.
        ConnectorError: a table cannot be written to.
        ConfigurationError: a table is not as described.
    """
    from sluiceway_spark.connector.table_sink import SparkTableSink  # Python workers need none of it

    for vertex in map(plan.graph.vertex, plan.sinks):
        step = vertex.head.step
        if isinstance(step, SinkStep) and isinstance(step.sink, SparkTableSink):
            step.sink.look_up()
    return dump((plan, services))


def load_plan(shipped: bytes) -> tuple[SteppedPlan, Services]:
    """Unpickle plan and services in a Python worker. The plan has the classes of the program that came with it."""
    classes = ProgramClasses()
    plan, services = load(shipped, lambda number: None, classes)
    plan.classes = classes
    return plan, services


class RecentPlans:
    """Plans that this process has worked for last, by what they came as; a query may have several, in turn."""

    def __init__(self) -> None:
        self._plans: dict[bytes | PlanFile, tuple[SteppedPlan, Services]] = {}

    def take(self, shipped: bytes | PlanFile) -> tuple[SteppedPlan, Services]:
        """Return plan and services, unpickled unless they are here."""
        found = self._plans.pop(shipped, None) or load_plan(bytes_of(shipped))
        self._plans[shipped] = found  # behind all others
        if len(self._plans) > _RECENT:
            del self._plans[next(iter(self._plans))]
        return found


def source_task(
    path: Sequence[str], shipped: bytes, dealt: bytes, stages: tuple[int, ...], elsewhere: frozenset[int]
) -> Any:
    """Return the task that reads sources: its input has one row per reader, the reader's index in ``dealt``.

    Args:
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        shipped: the plan.
        dealt: pairs of a target and its splits, as :class:`~sluiceway.runtime.microbatch.driven_enumerator.Dealt`.
        stages: 0, and those whose subtasks run in the same task.
        elsewhere: targets that run elsewhere, though at one of these stages: their rows are handed on.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import sys

        # The function is pickled by value and refers to nothing of this package: only now can that be imported.
        sys.path += [entry for entry in path if entry not in sys.path]
        from sluiceway_spark.structured.stages.batch_tasks import read_sources

        yield from read_sources(shipped, dealt, stages, elsewhere, batches)

    return task


def stage_task(path: Sequence[str], shipped: bytes, stages: tuple[int, ...], elsewhere: frozenset[int]) -> Any:
    """Return the task that runs the subtasks of stages, on rows repartitioned by target and sorted.

    Args:
        path: as above.
        shipped: as above.
        stages: which ones; rows come for the first of them.
        elsewhere: as above.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import sys

        sys.path += [entry for entry in path if entry not in sys.path]
        from sluiceway_spark.structured.stages.batch_tasks import run_stages

        yield from run_stages(shipped, stages, elsewhere, batches)

    return task


# ---- in the Python workers ----------------------------------------------------------------------------------


def read_sources(
    shipped: bytes,
    dealt: bytes,
    stages: tuple[int, ...],
    elsewhere: frozenset[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the readers whose numbers are in the input."""
    with _Stages(shipped, stages, elsewhere) as worker:
        readers: list[tuple[int, Dealt]] = worker.load(dealt)
        numbers: Iterator[Any] = (number for batch in batches for number in batch.column(0).to_pylist())
        yield from to_batches(row for number in numbers for row in worker.read(*readers[number]))


def run_stages(
    shipped: bytes, stages: tuple[int, ...], elsewhere: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the subtasks of stages; pass rows of other stages or targets on."""
    with _Stages(shipped, stages, elsewhere) as worker:
        yield from to_batches(worker.run(rows_in(batches)))


class StageWorker:
    """Task of Spark. As a context it closes open subtasks and wraps exceptions for the driver."""

    def __init__(self, shipped: bytes) -> None:
        self._chain: SteppedTask | None = None
        self._shipped = shipped
        self._plan: SteppedPlan
        self._services: Services
        self._collector = seldom()

    def __enter__(self) -> Self:
        freeze_between_tasks()
        try:
            self._plan, self._services = load_plan(self._shipped)
        except Exception as error:
            raise sent(error) from None
        self._collector.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._collector.__exit__(None, None, None)
        for chain in self.chains():
            try:
                chain.close()
            except Exception as second:
                error = error or second
        if isinstance(error, Exception):
            raise sent(error) from None

    def chains(self) -> list[SteppedTask]:
        """Return the open subtasks."""
        return [] if self._chain is None else [self._chain]

    def load(self, shipped: bytes) -> Any:
        """Unpickle a message of the driver. Result handles are not used here."""
        return load(shipped, lambda number: None)


class _Stages(StageWorker):
    """Task that runs the subtasks of one stage, and those of later stages that only these feed."""

    def __init__(self, shipped: bytes, stages: tuple[int, ...], elsewhere: frozenset[int]) -> None:
        super().__init__(shipped)
        self._packer: RowPacker
        self._chains: dict[int, SteppedTask] = {}
        self._stage = stages[0]
        self._here = frozenset(stages[1:])
        self._elsewhere = elsewhere

    @override
    def __enter__(self) -> Self:
        super().__enter__()
        self._packer = RowPacker(self._plan)
        return self

    @override
    def chains(self) -> list[SteppedTask]:
        return list(self._chains.values())

    def read(self, target: int, dealt: Dealt) -> Iterator[Row]:
        """Read all splits of a reader, which are assigned when it asks for them."""
        chain = self._open(target)
        assert isinstance(chain.input, SourceInput)
        splits = SplitsInTurn(chain, dealt, chain.input.snapshot)
        # Reading pauses where the reader wants splits, or much is waiting to be sent.
        packer = self._packer
        while not chain.read(MANY, lambda: splits.wanted() or chain.waiting >= packer.many):
            if splits.wanted():
                splits.give()
                if chain.waiting < packer.many:
                    continue
            yield from self._given_out(chain)
        splits.check_all_received(chain.vertex.head.name, chain.subtask, chain.vertex.parallelism)
        yield from self._end(chain)

    def run(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Run subtask after subtask."""
        chain: SteppedTask | None = None
        target = -1
        for row in rows:
            if row.stage in self._here and row.target not in self._elsewhere:
                if len(row.payload):
                    raise AssertionError(f"records of stage {row.stage} have come from outside of its task")
                continue  # a call: this subtask is opened by its producers, which are here
            if row.stage > self._stage or row.target in self._elsewhere:
                yield row
                continue
            if row.stage < self._stage:
                raise AssertionError(f"a row of stage {row.stage} has come to stage {self._stage}")
            if row.target != target or chain is None:
                if chain is not None:
                    yield from self._end(chain)
                target, chain = row.target, self._open(row.target)
            chain.feed(row.sender, self._plan.unpack(row.sender, row.payload))
            if chain.waiting >= self._packer.many:
                yield from self._given_out(chain)
        if chain is not None:
            yield from self._end(chain)

    def _open(self, target: int) -> SteppedTask:
        vertex, subtask = self._plan.who(target)
        chain = self._chains[target] = SteppedTask(
            self._plan,
            vertex,
            subtask,
            state_backend=self._services.state_backend(self._plan.settings.state_backend),
            clock=self._services.clock,
            services=self._services,
            attempt=_attempt(),
        )
        chain.open()
        return chain

    def _given_out(self, chain: SteppedTask) -> Iterator[Row]:
        # Rows of a good size if there are any; else whatever waits, so that memory is free.
        return self._sent_on(chain.take(FULL) or chain.take())

    def _sent_on(self, taken: Iterable[tuple[int, int, int, int, list[Any]]]) -> Iterator[Row]:
        """Yield elements as rows; pass those for subtasks of this task to them at once."""
        for stage, target, sender, seq, elements in taken:
            if stage not in self._here or target in self._elsewhere:
                yield from self._packer.pack(stage, target, sender, seq, elements)
                continue
            self._packer.learn(elements, 0)
            chain = self._chains.get(target) or self._open(target)
            chain.feed(sender, elements)
            if chain.ended:
                yield from self._end(chain)
            elif chain.waiting >= self._packer.many:
                yield from self._given_out(chain)

    def _end(self, chain: SteppedTask) -> Iterator[Row]:
        """Yield the remaining rows of a subtask and its outcome, and close it."""
        target = self._plan.target(chain.vertex.id, chain.subtask)
        if not chain.ended:
            raise AssertionError(
                f"{chain.vertex.name!r}, subtask {chain.subtask + 1}, has not heard of its input's end"
            )
        # Checkpoint 1 of a sink is its pre-commit; the driver commits when all tasks have ended.
        ready = chain.snapshot(1) if chain.vertex.id in self._plan.sinks else []
        yield from self._sent_on(chain.take())
        outcome = Outcome(
            target,
            chain.records_in,
            chain.records_out,
            chain.records_to_sinks,
            chain.metrics(),
            tuple(committable for snapshot in ready for committable in snapshot.committables),
        )
        del self._chains[target]
        chain.close()
        yield Row(self._plan.last_stage + 1, target, -1, 0, dump(outcome))


def sent(error: Exception) -> Exception:
    """Wrap an exception so that it passes through Spark and ``run()`` raises the original."""
    if isinstance(error, SubtaskFailedError):
        return error
    return SubtaskFailedError(f"sluiceway-failed {base64.b64encode(dump_error(error)).decode()}.")


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
