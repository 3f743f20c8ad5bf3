"""One attempt of a job that writes numbers to Kafka exactly once, and that dies at a point of the protocol.

Run as a program. Its checkpoint is a file: the next number, and the sink's committables. The attempt restores it,
writes and takes checkpoints until all numbers are written, and ends with 0.
"""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluiceway.testing.drivers import SinkDriver
from sluiceway_kafka import KafkaSink
from sluiceway_kafka._coordinator import Coordinator
from sluiceway_kafka._transactions import TransactionalWriter

POINTS = ("written", "flushed", "marked", "stored", "ended", "completed")
"""Points of a checkpoint, in their order."""

POINTS_OF_RECOVERY = ("fenced", "recommitted", "recovered")
"""Points of a restore, in their order."""

_PART = 3


class _Death:
    """Sends a signal to its own process the n-th time that a point is reached."""

    def __init__(self, point: str, occurrence: int, number: int) -> None:
        self._point = point
        self._left = occurrence
        self._number = number

    def reached(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)

    def after(
        self, point: str, owner: Any, name: str, when: Callable[[dict[str, Any]], bool] | None = None
    ) -> None:
        """Have the point reached after each call of a method."""
        method = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            if when is None or when(named):
                self.reached(point)
            return result

        setattr(owner, name, called)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "prefix", "checkpoint", "point"):
        parser.add_argument(name)
    for name in ("occurrence", "signal", "parallelism", "total"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    death = _Death(given.point, given.occurrence, given.signal)
    prepare = TransactionalWriter.prepare_commit

    def prepare_commit(self: TransactionalWriter, checkpoint_id: int) -> Any:
        death.reached("flushed")
        return prepare(self, checkpoint_id)

    TransactionalWriter.prepare_commit = prepare_commit  # type: ignore[method-assign]
    death.after("marked", TransactionalWriter, "prepare_commit")
    death.after("fenced", Coordinator, "fence")
    recovering = True
    death.after("recommitted", Coordinator, "end", lambda named: named["commit"] and recovering)
    death.after("ended", Coordinator, "end", lambda named: named["commit"] and not recovering)
    death.after("recovered", TransactionalWriter, "recover")

    checkpoint = Path(given.checkpoint)
    position, kept = pickle.loads(checkpoint.read_bytes()) if checkpoint.exists() else (0, None)
    sink = KafkaSink(given.servers, given.topic, guarantee="exactly-once", transactional_id_prefix=given.prefix)
    with SinkDriver(sink, given.parallelism, checkpoints=True, restored=kept) as driver:
        recovering = False
        while position < given.total:
            for subtask in range(given.parallelism):
                driver.write([str(position + number) for number in range(_PART)], subtask=subtask)
                position += _PART
                death.reached("written")
            kept = driver.checkpoint()
            unfinished = checkpoint.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps((position, kept)))
            unfinished.rename(checkpoint)
            death.reached("stored")
            driver.complete()
            death.reached("completed")


if __name__ == "__main__":
    main()
