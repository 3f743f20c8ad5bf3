"""Sum the readings of each ten seconds, correct a sum when readings come late, and put aside what comes too late.

Run it::

    sluiceway run examples/late_data.py
    python examples/late_data.py [--assert]
"""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows

SECOND = 1000


class Reading(NamedTuple):
    """So many litres ran through a meter, at some time (ms)."""

    meter: str
    litres: int
    at: int


READINGS = [
    Reading("m1", 3, 1 * SECOND),
    Reading("m1", 4, 8 * SECOND),
    Reading("m2", 7, 9 * SECOND),
    Reading("m1", 5, 7 * SECOND),  # out of order, and still in time
    Reading("m1", 1, 13 * SECOND),  # two seconds less is 11 s: the first ten seconds are over
    Reading("m1", 2, 6 * SECOND),  # late: the sum of the first ten seconds is corrected
    Reading("m2", 6, 17 * SECOND),
    Reading("m2", 9, 4 * SECOND),  # too late
    Reading("m1", 8, 29 * SECOND),
    Reading("m2", 5, 12 * SECOND),  # too late as well
]

TOO_LATE = sw.OutputTag[Reading]("too late")


class TwoSecondsBehind(sw.WatermarkGenerator[Reading]):
    """Says after each reading how far time has come: two seconds less than the latest time seen.

    ``WatermarkStrategy.for_bounded_out_of_orderness("2s")`` says it now and then, which costs less.
    """

    def __init__(self) -> None:
        self.latest = 0

    def on_event(self, value: Reading, timestamp: int, output: sw.WatermarkOutput) -> None:
        """Called for each reading."""
        self.latest = max(self.latest, timestamp)
        output.emit_watermark(self.latest - 2 * SECOND - 1)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        """There is nothing to say without a reading."""


class Total(NamedTuple):
    """Total of a meter in ten seconds."""

    meter: str
    start: int
    litres: int


class ToTotal(sw.ProcessWindowFunction[str, int, Total]):
    """Puts meter and window to the sum."""

    def process(self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: Sequence[int]) -> Iterator[Total]:
        yield Total(key, ctx.window().start // SECOND, sum(elements))


class Litres(sw.AggregateFunction[Reading, int, int]):
    """Adds up litres."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Reading, accumulator: int) -> int:
        return accumulator + value.litres

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


flow = sw.Pipeline("late data")
totals = (
    flow.from_collection(READINGS)
    .assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_generator(TwoSecondsBehind).with_timestamp_assigner(lambda reading: reading.at)
    )
    .key_by(lambda reading: reading.meter)
    .window(TumblingEventTimeWindows.of("10s"))
    .allowed_lateness("4s")
    .side_output_late_data(TOO_LATE)
    .aggregate(Litres(), ToTotal())
)
too_late = totals.get_side_output(TOO_LATE)

totals.print("total")
too_late.print("too late")
seen = totals.collect(), too_late.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert seen[0] == [
            Total("m1", 0, 12),
            Total("m2", 0, 7),
            Total("m1", 0, 14),  # again, with the late reading
            Total("m1", 10, 1),
            Total("m2", 10, 6),
            Total("m1", 20, 8),
        ]
        assert seen[1] == [Reading("m2", 9, 4 * SECOND), Reading("m2", 5, 12 * SECOND)]
