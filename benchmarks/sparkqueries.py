"""Queries of Spark that are watched: time, processor time and records of their micro-batches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

__all__ = ["Processors", "Taken", "taken_by"]

_LOOK_S = 0.1
_SIGCHLD = 1 << 16
"""Bit of that signal in the masks of ``/proc``."""


class Processors:
    """Processor time of this process and of all below it, those that have ended included, without the looks.

    A parent has the time of its children that have ended, unless it ignores their end, as Spark's Python daemon
    does: such children count with what they had used at the last look.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}
        self._looked_s = 0.0

    def ms(self) -> float:
        """Look, and return the time since the start of each of these processes, ms."""
        at = time.thread_time()
        found: dict[int, tuple[int, int, int]] = {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = place.read_text().rpartition(")")[2].split()
                found[int(place.parent.name)] = int(fields[1]), int(fields[19]), sum(map(int, fields[11:15]))
        ignoring: dict[int, bool] = {}
        now: dict[tuple[int, int], _Known] = {}
        for number, (parent, began, used) in found.items():
            above = number
            while above in found and above != os.getpid():
                above = found[above][0]
            if above != os.getpid() and (number, began) not in self._known:
                continue
            if parent not in ignoring:
                ignoring[parent] = _ignores_children(parent)
            known = self._known.get((number, began))
            # Behind its parent's end nobody adds its time to theirs.
            now[number, began] = _Known(
                used, ignoring[parent] or above != os.getpid() or bool(known and known.lost)
            )
        for which, known in self._known.items():
            if which not in now and known.lost:
                now[which] = known
        self._known = now
        # A look takes about 10 ms where there are hundreds of processes: at ten in a second, a tenth of a core.
        self._looked_s += time.thread_time() - at
        return 1000 * (sum(known.ticks for known in now.values()) / os.sysconf("SC_CLK_TCK") - self._looked_s)


class _Known(NamedTuple):
    """Process: the time that it has used, and whether that is lost when it ends."""

    ticks: int
    lost: bool


def _ignores_children(process: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & _SIGCHLD)
    return False


class Taken(NamedTuple):
    """Measurement of one query.

    Attributes:
        whole: seconds from the start of the query to its end.
        records: of the input, in its micro-batches with input but for the first.
        wall: seconds of these.
        cpu: seconds of processor time of all processes in these.
    """

    whole: float
    records: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        """Records in a second."""
        return self.records / self.wall

    @property
    def cpu_rate(self) -> float:
        """Records in a second of processor time."""
        return self.records / self.cpu


def taken_by(work: Callable[[], Any]) -> Taken:
    """Run what starts one query and waits for its end. The query has at least two micro-batches with input."""
    began = time.perf_counter()
    with _watching() as watch:
        work()
    whole = time.perf_counter() - began
    watch.thread.join()
    told = {batch.batchId: batch.durationMs["triggerExecution"] / 1e3 for batch in watch.query.recentProgress}
    # Spark's rows are batches of records in ours, which tell themselves how many they have read.
    records = watch.records or {batch.batchId: batch.numInputRows for batch in watch.query.recentProgress}
    last = max(number for number, count in records.items() if count)
    rest = [number for number in range(1, last + 1) if records[number]]
    cpu = watch.used.get(last, watch.end) - watch.used[0]
    return Taken(whole, sum(map(records.__getitem__, rest)), sum(map(told.__getitem__, rest)), cpu / 1e3)


class _Watch:
    """Thread that looks at a query, and what it has seen.

    Attributes:
        records: read in each micro-batch, by its number; empty if the query is not one of ours.
        used: processor time at the end of each, ms.
        end: that at the end of the query.
    """

    query: Any
    thread: threading.Thread

    def __init__(self) -> None:
        self.records: dict[int, int] = {}
        self.used: dict[int, float] = {}
        self.end = 0.0
        self._processors = Processors()

    def begin(self, query: Any) -> None:
        self.query = query
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        over = False
        while not over:
            with suppress(Exception):  # whoever waits for the query is told
                over = self.query.awaitTermination(_LOOK_S)
            over = over or not self.query.isActive
            self.end = self._processors.ms()
            number = (self.query.lastProgress or {"batchId": -1})["batchId"]
            if number >= 0:
                self.used.setdefault(number, self.end)


@contextmanager
def _watching() -> Iterator[_Watch]:
    """Watch the query that is started meanwhile."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sluiceway_spark.structured.microbatch.progress import QueryProgress

    watch, start, wrote = _Watch(), DataStreamWriter.start, QueryProgress.wrote

    def note(writer: Any, *args: Any, **kwargs: Any) -> Any:
        query = start(writer, *args, **kwargs)
        watch.begin(query)
        return query

    def note_records(progress: Any, number: int, records: int) -> None:
        watch.records[number] = records
        wrote(progress, number, records)

    with patch.object(DataStreamWriter, "start", note), patch.object(QueryProgress, "wrote", note_records):
        yield watch
