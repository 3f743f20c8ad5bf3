"""Stateful stage: subtasks as groups of ``transformWithState``, one call and few state calls per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

# Before a query begins Spark starts a process that only asks a processor what state it has, and waits for that:
# what does the work is imported when there is some.
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.chained_sinks_spec import ChainedSinksSpec
from sluiceway_spark.structured.stages.large_plans import PlanFile

if TYPE_CHECKING:
    from sluiceway_spark.structured.stages.chained_sinks import ChainedSinks

try:
    from pyspark.sql.streaming import StatefulProcessor
except ImportError:  # the engine says what is missing before anything comes here
    StatefulProcessor = object

__all__ = ["NOW_MS", "SINKS_AFTER", "StageProcessor"]

_BATCH: Final = "streaming.sql.batchId"
"""The local property of Spark's, private to it, that says which micro-batch a task is of."""

NOW_MS: Final = "sluiceway.now-ms"
"""The local property of Spark's that says what time it is in a micro-batch."""


SINKS_AFTER: Final = "sluiceway.sinks-after"
"""The local property of Spark's that says how far chained sinks are; see ``SinkStage.after``."""


class StageProcessor(StatefulProcessor):  # type: ignore[misc]
    """Processor that runs the subtasks of one stage; rows of later stages pass unchanged.

    Args:
        run: names the query and what its state goes by.
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        shipped: the plan, from ``large_plans.in_message_or_file``.
        stage: the stage.
        spread: whether ``target`` of the rows that come in is the key of their group, of which
            ``placement.target_of`` gives the number of the subtask.
        chaining: the sinks that are chained to it; None: none are.
    """

    def __init__(
        self,
        run: str,
        path: Sequence[str],
        shipped: bytes | PlanFile,
        stage: int,
        *,
        spread: bool = False,
        chaining: ChainedSinksSpec | None = None,
    ) -> None:
        self._run = run
        self._path = path
        self._shipped = shipped
        self._stage = stage
        self._spread = spread
        self._chaining = chaining
        self._sinks: ChainedSinks | None = None

    def init(self, handle: Any) -> None:
        """Open the state variables."""
        from sluiceway.util.garbage_collector import freeze_between_tasks

        freeze_between_tasks()
        self._kept = _InSpark(handle)
        self._batch = _batch_number()
        self._now_ms = _number(NOW_MS)

    # Spark calls these by name of parameter.
    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        """Process the rows of one target."""
        from sluiceway_spark.structured.microbatch.worker import open_sinks, work
        from sluiceway_spark.structured.stages.batch_tasks import sent
        from sluiceway_spark.structured.state.placement import target_of

        mine: list[Row] = []
        later: list[Row] = []
        for row in map(_OutRow._make, rows):
            if self._spread:
                row = row._replace(target=target_of(row.target))
            (mine if row.stage == self._stage else later).append(row)
        try:
            yield from later
            if mine:
                if self._chaining is not None and self._sinks is None:
                    after = _property(SINKS_AFTER)
                    if after is None:
                        raise RuntimeError(f"Spark does not tell its tasks the property {SINKS_AFTER!r}")
                    self._sinks = open_sinks(self._path, self._shipped, self._chaining, self._batch, after)
                given = (self._run, mine[0].target, self._batch, self._now_ms)
                worked = work(self._path, self._shipped, *given, mine, self._kept, self._sinks)
                yield from map(_OutRow._make, worked)
        except Exception as error:
            if self._sinks is not None:
                self._sinks.close()
            raise sent(error) from None

    def close(self) -> None:
        """Finish chained sinks; subtasks stay for the next micro-batch."""
        if self._sinks is not None:
            self._sinks.finish()


class _OutRow(Row):
    """Row in the form that Spark accepts."""

    __slots__ = ()

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802
        return self._asdict()


class _InSpark:
    def __init__(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType, StringType, StructField, StructType

        # As types: Spark has a text parsed in the JVM, in two round trips for each variable and task.
        self._log = handle.getListState("log", StructType([StructField("record", BinaryType())]))
        self._token = handle.getValueState("token", StructType([StructField("token", StringType())]))

    def token(self, *, is_there: bool) -> str | None:
        found = self._token.get() if is_there or self._token.exists() else None
        return None if found is None else str(found[0])

    def set_token(self, token: str) -> None:
        self._token.update((token,))

    def records(self) -> list[bytes]:
        return [bytes(row[0]) for row in self._log.get()]

    def append(self, record: bytes) -> None:
        self._log.appendValue((record,))

    def replace(self, record: bytes) -> None:
        self._log.put([(record,)])


def _batch_number() -> int:
    """Return the number of the micro-batch.

    Raises:
        RuntimeError: this version of Spark does not tell it as others do. Any other number would be of state that
            is not this one's.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:  # the process that only asks what state there is
        return 0
    number = _number(_BATCH)
    if number is None:
        raise RuntimeError(
            f"Spark does not tell its tasks the number of the micro-batch, as property {_BATCH!r}: micro-batches "
            "do not work with this version of it"
        )
    return number


def _number(name: str) -> int | None:
    found = _property(name)
    return int(found) if found else None


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
