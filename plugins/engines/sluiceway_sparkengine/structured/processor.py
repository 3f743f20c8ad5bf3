"""Subtasks of ours as groups of Spark's ``transformWithState``: one call and a few state calls per micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sluiceway.clock import Clock, SystemClock
from sluiceway.engine import Services
from sluiceway.runtime.cluster.shipping import load
from sluiceway.runtime.embedded import EmbeddedPlan
from sluiceway_sparkengine.structured.packed import Cache
from sluiceway_sparkengine.structured.rows import Row
from sluiceway_sparkengine.structured.stages import sent

try:
    from pyspark.sql.streaming import StatefulProcessor
except ImportError:  # the engine says what is missing before anything comes here
    StatefulProcessor = object

__all__ = ["NOW_MS", "BatchClock", "LevelProcessor"]

NOW_MS: Final = "sluiceway.now-ms"
"""The local property of Spark's that says what time it is in a micro-batch."""


class BatchClock(Clock):
    """Stands still within a micro-batch: the same timers fire when it comes again, however much later.

    What sinks have written of a micro-batch that was noted stays as it is, and state has to go with that.
    """

    def __init__(self) -> None:
        self._system = SystemClock()
        self._now_ms: int | None = None

    def stand_at(self, now_ms: int | None) -> None:
        """Take it to be that time, ms since the epoch; None: as the system says."""
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time of the micro-batch."""
        return self._system.now_ms() if self._now_ms is None else self._now_ms

    def monotonic(self) -> float:
        """Seconds that do go on, for what is waited for."""
        return self._system.monotonic()


class _Process:
    """What a Python worker keeps between micro-batches.

    Attributes:
        shipped: what the plan came as; Spark makes a new processor for each task.
        plan: the job.
        services: what plugins give.
        clock: that of the subtasks.
        cache: the subtasks at work here.
    """

    def __init__(self) -> None:
        self.shipped = b""
        self.plan: EmbeddedPlan
        self.services: Services
        self.clock = BatchClock()
        self.cache = Cache(self.clock, lambda: self.services)

    def take(self, path: Sequence[str], shipped: bytes) -> EmbeddedPlan:
        if shipped != self.shipped:
            import sys

            sys.path += [entry for entry in path if entry not in sys.path]
            self.plan, self.services = load(shipped, lambda number: None)
            self.shipped = shipped
        return self.plan


_process = _Process()


class LevelProcessor(StatefulProcessor):  # type: ignore[misc]
    """Runs the subtasks of one stage; rows for later ones go on as they are.

    Args:
        run: names the query and what its state goes by.
        path: the driver's ``sys.path``, where executors may find us and the user's modules.
        shipped: the plan.
        stage: the stage.
    """

    def __init__(self, run: str, path: Sequence[str], shipped: bytes, stage: int) -> None:
        self._run = run
        self._path = path
        self._shipped = shipped
        self._stage = stage

    def init(self, handle: Any) -> None:
        """Find what Spark keeps."""
        self._kept = _InSpark(handle)
        self._batch = _property("streaming.sql.batchId") or 0
        self._now_ms = _property(NOW_MS)

    # Spark calls these by name of parameter.
    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        """Give a subtask its rows."""
        mine: list[Row] = []
        later: list[Row] = []
        for row in map(_OutRow._make, rows):
            (mine if row.stage == self._stage else later).append(row)
        try:
            yield from later
            if mine:
                plan = _process.take(self._path, self._shipped)
                yield from map(_OutRow._make, self._work(plan, int(key[0]), mine))
        except Exception as error:
            raise sent(error) from None

    def _work(self, plan: EmbeddedPlan, target: int, rows: Iterable[Row]) -> Iterator[Row]:
        _process.clock.stand_at(self._now_ms)
        return _process.cache.process(self._run, plan, target, self._batch, rows, self._kept)

    def close(self) -> None:
        """Keep what is there for the next micro-batch."""


class _OutRow(Row):
    """A row as Spark takes it."""

    __slots__ = ()

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802
        return self._asdict()


class _InSpark:
    def __init__(self, handle: Any) -> None:
        self._log = handle.getListState("log", "record binary")
        self._token = handle.getValueState("token", "token string")

    def token(self) -> str | None:
        found = self._token.get()
        return None if found is None else str(found[0])

    def set_token(self, token: str) -> None:
        self._token.update((token,))

    def records(self) -> list[bytes]:
        return [bytes(row[0]) for row in self._log.get()]

    def append(self, record: bytes) -> None:
        self._log.appendValue((record,))

    def replace(self, record: bytes) -> None:
        self._log.put([(record,)])


def _property(name: str) -> int | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    return int(found) if found else None
