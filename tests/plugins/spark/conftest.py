"""Programs that are run on clusters of Spark's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUMBERS = '''
from collections.abc import Iterator

import sluiceway as sw
from helper import keyed
from sluiceway.testing.exactly_once import KeySequence, NumberFiles
from sluiceway.windows import TumblingEventTimeWindows


class Later(sw.KeyedProcessFunction[int, int, int]):
    """Holds each number back by 50 ms of event time."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_list_state(sw.ListStateDescriptor("held", int))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        self.held.add(value)
        ctx.timer_service().register_event_time_timer(value + 50)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterator[int]:
        held = list(self.held.get())
        self.held.update([n for n in held if n + 50 > timestamp])
        yield from [n for n in held if n + 50 <= timestamp]


flow = sw.Pipeline("numbers")
times = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
numbers = flow.generate(count={count}, rate={rate}).uid("numbers").assign_timestamps_and_watermarks(times)
held = keyed(keyed(numbers).map(KeySequence(10)).uid("sequence")).process(Later()).uid("later")
windows = keyed(held).window(TumblingEventTimeWindows.of("100ms"))
windows.apply(lambda key, window, numbers: list(numbers)).uid("windows").sink(NumberFiles({out!r})).uid("files")
if __name__ == "__main__":
    flow.run(**{options!r})
'''
HELPER = "def keyed(numbers): return numbers.key_by(lambda n: n % 10)\n"


@pytest.fixture
def kept_numbers(tmp_path: Path) -> Callable[..., Path]:
    """Writes a program whose numbers wait in state, timers and windows, and a module that it imports.

    A micro-batch has the numbers of up to a second, however long it takes.
    """

    def write(count: int, rate: int = 1500, **options: Any) -> Path:
        (tmp_path / "helper.py").write_text(HELPER)
        flow = tmp_path / "numbers_flow.py"
        flow.write_text(NUMBERS.format(count=count, rate=rate, out=str(tmp_path / "out"), options=options))
        return flow

    return write
