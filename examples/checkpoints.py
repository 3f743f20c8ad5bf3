"""Count meter readings so that none is lost and none counts twice, whatever fails.

Readings are numbered, and reading n is that of meter n % 60, so the count of a meter tells which of its readings
has to come next. A function that finds another one fails.

Run it, and kill whatever you like; docs/howto/checkpoints.md goes on from here::

    sluiceway run examples/checkpoints.py --checkpoint-interval 1s --checkpoints kept [READINGS [PER_SECOND]]
    python examples/checkpoints.py [--assert]
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sluiceway as sw
from sluiceway_files import FilesSink

METERS = 60


class Count(sw.KeyedProcessFunction[int, int, str]):
    """Counts the readings of each meter, and knows which one has to come."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[str]:
        meter, count = ctx.get_current_key(), self.count.value()
        if value != count * METERS + meter:
            raise ValueError(f"reading {value} has come, and the one that has to is {count * METERS + meter}")
        self.count.update(count + 1)
        yield f"meter {meter}: {count + 1} readings"


def flow(
    arguments: list[str], out: str = "readings", trouble: sw.MapFunction[int, int] | None = None
) -> sw.Pipeline:
    """READINGS readings, PER_SECOND of them a second (0: as many as can be counted)."""
    readings, per_second = [*map(int, arguments), *(300_000, 10_000)[len(arguments) :]]
    flow = sw.Pipeline("meters")
    numbers = flow.generate(count=readings, rate=per_second or None).uid("numbers")
    if trouble is not None:
        numbers = numbers.map(trouble)
    counted = numbers.key_by(lambda reading: reading % METERS).process(Count()).uid("counted")
    counted.sink(FilesSink.text(out)).uid("written")
    return flow


class Trouble(sw.MapFunction[int, int]):
    """Fails in the middle of the first attempt."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.attempt = context.attempt_number

    def map(self, value: int) -> int:
        if value == 30_000 and self.attempt == 0:
            raise RuntimeError("killed")
        return value


def main() -> None:
    """Count, fail in the middle, and look at what was written."""
    with tempfile.TemporaryDirectory() as out:
        pipeline = flow(["60000", "0"], out, Trouble())
        result = pipeline.run(checkpoint_interval="10ms", restart="fixed-delay:1:0ms", log_level="error")
        lines = [line for file in Path(out).iterdir() for line in file.read_text().splitlines()]
    print(f"{len(lines)} readings were written, {len(set(lines))} of them different")
    if "--assert" in sys.argv:
        assert (len(lines), len(set(lines)), result.metrics.restarts) == (60_000, 60_000, 1)


if __name__ == "__main__":
    main()
