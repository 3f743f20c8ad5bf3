"""Progress of streaming queries, as Spark reports it, for people who watch the job."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sluiceway.monitoring.micro_batches import MicroBatchInfo

__all__ = ["QueryProgress"]

_KEPT: Final = 60


class QueryProgress:
    """The last 60 micro-batches of a job. Written by the threads of one query, read in any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: deque[MicroBatchInfo] = deque(maxlen=_KEPT)
        self._records: OrderedDict[int, int] = OrderedDict()
        self._expected = -1

    def wrote(self, number: int, records: int) -> None:
        """Note the records that sources read in a micro-batch: Spark's rows are batches of them."""
        with self._lock:
            self._records[number] = records
            if len(self._records) > _KEPT:
                self._records.popitem(last=False)
            self._expected = number

    def look(self, query: Any) -> None:
        """Take what Spark reports since the last look. Asks Spark only if it has something new."""
        newest = self._infos[-1].number if self._infos else -1
        if newest >= self._expected:
            return
        last = query.lastProgress
        if last is None or last["batchId"] <= newest:
            return
        told = query.recentProgress if last["batchId"] > newest + 1 else [last]
        with self._lock:
            for each in told:
                if each["batchId"] > newest:
                    self._infos.append(_info(each, self._records.pop(each["batchId"], 0)))

    def infos(self) -> list[MicroBatchInfo]:
        """Return the micro-batches, oldest first."""
        with self._lock:
            return list(self._infos)


def _info(told: Mapping[str, Any], records: int) -> MicroBatchInfo:
    phases = {name: int(ms) for name, ms in (told["durationMs"] or {}).items()}
    states = told["stateOperators"] or ()
    duration_ms = phases.pop("triggerExecution", 0)
    return MicroBatchInfo(
        number=int(told["batchId"]),
        at_ms=int(datetime.fromisoformat(told["timestamp"]).timestamp() * 1000),
        duration_ms=duration_ms,
        records=records,
        records_per_s=1000 * records / duration_ms if duration_ms else 0.0,
        state_rows=sum(int(state["numRowsTotal"]) for state in states),
        state_bytes=sum(int(state["memoryUsedBytes"]) for state in states),
        phases=phases,
    )
