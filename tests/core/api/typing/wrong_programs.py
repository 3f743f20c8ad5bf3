"""Read by type checkers, never run: mistakes of people who write their first pipeline; each is an error."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource


@dataclass
class Order:
    user: str
    amount: float
    at: int


class Total(sw.KeyedProcessFunction[str, Order, float]):
    COUNT = sw.ValueStateDescriptor("count", int, default=0)
    SEEN = sw.ListStateDescriptor("seen", str)
    BY_DAY = sw.MapStateDescriptor("by day", float, key_type=int)
    SUM = sw.ReducingStateDescriptor("sum", float, reduce=lambda a, b: a + b)

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(self.COUNT)
        self.seen = context.get_list_state(self.SEEN)
        self.by_day = context.get_map_state(self.BY_DAY)
        self.sum = context.get_reducing_state(self.SUM)
        self.wrong = context.get_list_state(self.COUNT)  # an error: no list state

    def process_element(self, value: Order, ctx: sw.KeyedProcessFunction.Context[str]) -> Iterator[float]:
        self.count.update("text")  # an error: text in an int state
        self.seen.add(value)  # an error: a record in a list of texts
        self.by_day["monday"] = 1.0  # an error: a text as key
        self.by_day.put(1, "much")  # an error: a text as value
        self.sum.add(value.user)  # an error: a text in a sum
        ctx.timer_service().register_event_time_timer("12:00")  # an error: a text as time
        ctx.get_current_key() + 1  # an error: the key is a text
        yield value.user  # an error: a text where numbers are promised


def sink_of_texts() -> sw.Sink[str]:
    raise NotImplementedError


flow = sw.Pipeline("first")
orders = flow.source(FilesSource.json_lines("orders.jsonl", type=Order))
lines = flow.source(FilesSource.text("lines.txt"))
users = orders.key_by(lambda order: order.user)
amounts = orders.map(lambda order: order.amount)

lines.map(lambda line: line.amount)  # an error: a line is a text
orders.filter(lambda order: order.quantity > 1)  # an error: no such field
users.process(Total()).map(lambda total: total.upper())  # an error: a total is a number
users.reduce(lambda a, b: a.amount + b.amount)  # an error: reduce makes an order of two
amounts.sink(sink_of_texts())  # an error: a sink of texts
monotonous = sw.WatermarkStrategy.for_monotonous_timestamps()
monotonous.with_timestamp_assigner(lambda order: "noon")  # an error: a text as time
orders.assign_timestamps_and_watermarks(lambda order: order.at)  # an error: no strategy
users.window(TumblingEventTimeWindows.of([10]))  # an error: no duration
lines.key_by(len).connect(users).process(Total())  # an error: a function of one stream
users.interval_join(lines.key_by(len))  # an error: keys of two types
flow.run(paralelism=2)  # an error: a slip in the name of an option
flow.run(parallelism="two")  # an error: a text where a number is wanted
flow.run(checkpoint_mode="exactly_once")  # an error: no such mode
flow.run(checkpoints=Path("checkpoints"), checkpoint_interval="10s", parallelism=2)
