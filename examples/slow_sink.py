"""A source that could do a million records per second, a sink that takes a thousand, and what is between them.

Run it::

    python examples/slow_sink.py [--seconds 5] [--assert]
"""

import asyncio
import sys
from collections.abc import Sequence

import sluiceway as sw
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext

RATE = 1_000


class SlowWriter(SinkWriter[int]):
    """Takes a batch, and is blocked for as long as its records would have taken."""

    def __init__(self, context: WriterContext) -> None:
        self._clock = context.clock
        self._until = 0.0

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        """Take them."""
        self._until = max(self._until, self._clock.monotonic()) + len(values) / RATE

    def blocked(self) -> Wait | None:
        """Say until when."""
        return Wait(until=self._until) if self._clock.monotonic() < self._until else None


class SlowSink(Sink[int]):
    """Takes RATE records per second in each subtask."""

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        """Make a writer."""
        return SlowWriter(context)


def pipeline() -> sw.Pipeline:
    """Two sources, whose records go to two sinks in turn; half of them to the other worker."""
    flow = sw.Pipeline("slow sink", parallelism=2)
    flow.from_sequence(0, 10**12).rebalance().sink(SlowSink())
    return flow


async def main(seconds: int) -> list[tuple[int, ...]]:
    """Run it for a while and print what is where, each second."""
    handle = await pipeline().start(workers=2, batch_size=100)
    rows: list[tuple[int, ...]] = []
    print(" s   from sources   to sinks   in gates   backlog   buffers")
    while len(rows) < seconds:
        await asyncio.sleep(1)
        subtasks = handle.metrics().subtasks
        if not any(s.records_out for s in subtasks):
            continue  # the workers are still starting
        sources = [s for s in subtasks if s.vertex_id == 0]
        sinks = [s for s in subtasks if s.vertex_id != 0]
        row = (
            sum(s.records_out for s in sources),
            sum(s.records_in for s in sinks),
            sum(s.queued for s in sinks),
            sum(s.backlog for s in sources),
            sum(s.buffers_in_use for s in sources),
        )
        rows.append(row)
        print(f"{len(rows):2} {row[0]:14,} {row[1]:10,} {row[2]:10} {row[3]:9} {row[4]:9}", flush=True)
    handle.cancel()
    await handle.result()
    return rows


if __name__ == "__main__":
    count = int(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 5
    figures = asyncio.run(main(count))
    if "--assert" in sys.argv:
        sent, taken, queued, backlog, buffers = figures[-1]
        assert sent - taken < 100 * 100, "what is under way does not grow"
        assert queued <= 2 * (2 * 2 + 8)
        assert backlog <= 4
