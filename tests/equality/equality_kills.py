"""A job on Spark in which processes are killed; run as a program, as the driver may be one of them.

python equality_kills.py PLACE MASTER COUNT {"options": ..., "conf": ..., "kills": {"point": ["victim", number]}}

The points are steps, at which a number comes, and ``commit``, where the victim is always the driver and the number
that of a micro-batch: see :data:`MOMENTS`. What was killed is noted in PLACE/marks, and happens once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import sluiceway as sw
from sluiceway.testing import KeySequence, NumberFiles
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink
from sluiceway_sql import SqlSink

KEYS = 12
BATCH = 1500
"""Records of a reader in a micro-batch."""

MOMENTS = ("prepared", "noted", "half committed", "committed")
"""How far a micro-batch is: sinks are ready, that is noted, the first sink has committed, or all have."""


class Held(sw.KeyedProcessFunction[int, int, int]):
    """Holds numbers back for some processing time."""

    def open(self, context: Any) -> None:
        self.held = context.get_list_state(sw.ListStateDescriptor("held", int))

    def process_element(self, value: int, ctx: Any) -> None:
        self.held.add(value)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 300)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[int]:
        held = list(self.held.get())
        self.held.clear()
        return held


class Killing:
    """Where and when what is killed.

    Args:
        place: the directory of it all.
        kills: by point, the victim and the number at which it is killed.
    """

    def __init__(self, place: Path, kills: dict[str, tuple[str, int]]) -> None:
        self.place = place
        self.kills = kills

    def at(self, point: str, value: Any) -> Any:
        """Pass it on, if nothing is to be killed."""
        victim, at = self.kills.get(point, ("", -1))
        if value == at and self.is_first(f"{point} {victim}"):
            os.kill(VICTIMS[victim](self.place), signal.SIGKILL)
            signal.pause()  # nothing more happens here, whoever it was that was killed
        return value

    def is_first(self, what: str) -> bool:
        try:
            (self.place / "marks" / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def end(self, moment: str, batch: int) -> None:
        """End the driver, if that was asked for."""
        at = self.kills.get(moment)
        if at is not None and batch >= at[1] and self.is_first(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_commits(self) -> None:
        """Have the driver killed at the end of micro-batches."""
        from sluiceway.runtime.microbatch.commit_log import CommitLog
        from sluiceway_spark.structured.stages import sink_stage

        batch = -1
        write, commit = CommitLog.write, sink_stage.commit_all
        stage_write = sink_stage.SinkStage.write

        def watched_log(log: Any, record: Any, ready: Any) -> None:
            nonlocal batch
            batch = record.batch
            self.end("prepared", batch)
            write(log, record, ready)
            self.end("noted", batch)

        def watched_commit(sink: Any, committables: Any, **others: Any) -> None:
            commit(sink, committables, **others)
            if committables:
                self.end("half committed", batch)

        def watched_write(stage: Any, rows: Any, number: int) -> Any:
            report = stage_write(stage, rows, number)
            self.end("committed", number)
            return report

        CommitLog.write = watched_log  # type: ignore[method-assign]
        sink_stage.commit_all = watched_commit
        sink_stage.SinkStage.write = watched_write  # type: ignore[method-assign]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor() -> int:
    """The JVM that has started the daemon of the Python worker that this is."""
    pid = os.getpid()
    while "java" not in os.readlink(f"/proc/{pid}/exe"):
        pid = parent_of(pid)
    return pid


VICTIMS: dict[str, Callable[[Path], int]] = {
    "worker": lambda place: os.getpid(),
    "executor": lambda place: executor(),
    "driver": lambda place: int((place / "driver").read_text()),
}


def pipeline(
    place: Path, count: int, killing: Killing, *, held: bool = True, chained: bool = False
) -> sw.Pipeline:
    """Numbers that are compared with the state of their key; windows of them; and such as wait for a timer.

    Args:
        place: for the output.
        count: how many numbers.
        killing: told of each number.
        held: whether numbers wait for a timer.
        chained: whether all sinks are behind the last keyed steps, whose tasks write them then.
    """
    flow = sw.Pipeline("kills", parallelism=2, max_parallelism=4)
    at_source, at_key, at_sink = (partial(killing.at, point) for point in ("source", "key", "sink"))
    stamped: Any = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(int)
    numbers = flow.generate(count=count).uid("numbers").assign_timestamps_and_watermarks(stamped).uid("stamped")
    numbers = numbers.map(at_source).uid("at source")
    checked = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("checked").map(at_key).uid("at key")
    windows = checked.key_by(lambda n: n % KEYS).window(TumblingEventTimeWindows.of(2000))
    sums = windows.reduce(lambda a, b: a + b).uid("windows").map(lambda total: (total,)).uid("rows")
    sums.sink(SqlSink(str(place / "sums.db"), "sums", ["total"])).uid("to sums")
    waiting = checked.key_by(lambda n: n % KEYS).process(Held()).uid("held") if held else checked
    (waiting if chained else checked).sink(NumberFiles(place / "numbers")).uid("to numbers")
    waiting.sink(FilesSink.text(place / "lines", to_text=lambda n: str(at_sink(n)))).uid("to lines")
    return flow


def main() -> None:
    place, master, count, asked = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    (place / "marks").mkdir(exist_ok=True)
    (place / "driver").write_text(str(os.getpid()))
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark import SessionConf
    from sluiceway_spark.structured import streaming_query

    streaming_query.LIMITS = BatchLimits(records=BATCH, wait_s=0.1, linger_s=0.05)  # type: ignore[misc]
    killing = Killing(place, {point: tuple(kill) for point, kill in asked["kills"].items()})
    killing.watch_commits()
    conf: dict[str, Any] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.python.authenticate.socketTimeout": "120s",  # machines are slow at times
        **asked["conf"],
    }
    SessionConf.of(master, None, conf).session()
    flow = pipeline(place, count, killing, chained=asked["chained"])
    result = flow.run(engine="spark", **asked["options"])
    print(json.dumps({"status": result.status.value, "restarts": result.metrics.restarts}))


if __name__ == "__main__":
    main()
