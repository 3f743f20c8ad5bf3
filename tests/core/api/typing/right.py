"""Read by mypy, never run: what is inferred along a pipeline."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import sluiceway as sw
from sluiceway_files import FilesSource


@dataclass
class Order:
    user: str
    amount: float
    items: int


class Parse(sw.MapFunction[str, Order]):
    def map(self, value: str) -> Order:
        return Order(value, 0.0, 1)


class Words(sw.FlatMapFunction[str, str]):
    def flat_map(self, value: str) -> Iterable[str]:
        return value.split()


class ByUser(sw.KeySelector[Order, str]):
    def get_key(self, value: Order) -> str:
        return value.user


class Mean(sw.AggregateFunction[Order, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return (0.0, 0)

    def add(self, value: Order, accumulator: tuple[float, int]) -> tuple[float, int]:
        return (accumulator[0] + value.amount, accumulator[1] + 1)

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]


class Changes(sw.KeyedProcessFunction[str, Order, int]):
    def process_element(self, value: Order, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        yield value.items


class Split(sw.ProcessFunction[str, int]):
    def process_element(self, value: str, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        yield len(value)


def keyed(value: Order, ctx: sw.KeyedProcessFunction.Context) -> Iterator[bytes]:
    yield str(ctx.get_current_key()).encode()


class Labelled(sw.CoMapFunction[str, Order, bytes]):
    def map1(self, value: str) -> bytes:
        return b""

    def map2(self, value: Order) -> bytes:
        return b""


class Meet(sw.KeyedCoProcessFunction[str, str, Order, float]):
    def process_element1(self, value: str, ctx: sw.KeyedCoProcessFunction.Context) -> None: ...

    def process_element2(self, value: Order, ctx: sw.KeyedCoProcessFunction.Context) -> Iterator[float]:
        yield value.amount

    def on_timer(self, timestamp: int, ctx: sw.KeyedCoProcessFunction.OnTimerContext) -> list[float]:
        return [float(ctx.timestamp() or 0)]


class LookedUp(sw.BroadcastProcessFunction[Order, str, bytes]):
    def process_element(self, value: Order, ctx: sw.BroadcastProcessFunction.ReadOnlyContext) -> Iterator[bytes]:
        rules: sw.ReadOnlyBroadcastState[str, int] = ctx.get_broadcast_state(RULES)
        yield bytes(rules[value.user])

    def process_broadcast_element(self, value: str, ctx: sw.BroadcastProcessFunction.Context) -> None:
        rules: sw.BroadcastState[str, int] = ctx.get_broadcast_state(RULES)
        rules[value] = 1


class KeyedLookedUp(sw.KeyedBroadcastProcessFunction[str, Order, str, int]):
    def process_element(
        self, value: Order, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> list[int] | None:
        ctx.timer_service().register_event_time_timer(len(ctx.get_broadcast_state(RULES)))
        return None

    def process_broadcast_element(self, value: str, ctx: sw.KeyedBroadcastProcessFunction.Context) -> list[int]:
        ctx.apply_to_keyed_state(sw.ValueStateDescriptor("seen"), lambda key, state: state.clear())
        return []


RULES = sw.MapStateDescriptor("rules", int, key_type=str)


def silent(value: str, ctx: sw.ProcessFunction.Context) -> list[int] | None:
    return None


flow = sw.Pipeline("typing", parallelism=2)
lines = flow.from_collection(["a b", "c"])
assert_type(lines, sw.DataStream[str])
assert_type(lines.map(len), sw.DataStream[int])
assert_type(lines.map(lambda line: line.upper()), sw.DataStream[str])
assert_type(lines.map(Parse()), sw.DataStream[Order])
assert_type(lines.flat_map(lambda line: line.split()), sw.DataStream[str])
assert_type(lines.flat_map(str.split), sw.DataStream[str])
assert_type(lines.flat_map(Words()), sw.DataStream[str])
assert_type(lines.filter(lambda line: len(line) > 3), sw.DataStream[str])
assert_type(lines.filter(str.strip), sw.DataStream[str])
assert_type(lines.process(Split()), sw.DataStream[int])
assert_type(lines.process(silent), sw.DataStream[int])
assert_type(lines.map(lambda line: (line, 1)).filter(lambda pair: pair[1] > 0), sw.DataStream[tuple[str, int]])

orders = lines.map(Parse())
by_user = orders.key_by(lambda order: order.user)
assert_type(by_user, sw.KeyedStream[Order, str])
assert_type(orders.key_by(ByUser()), sw.KeyedStream[Order, str])
assert_type(by_user.count(), sw.DataStream[tuple[str, int]])
assert_type(by_user.reduce(lambda a, b: a if a.amount > b.amount else b), sw.DataStream[Order])
assert_type(by_user.sum("amount"), sw.DataStream[Order])
assert_type(by_user.sum(lambda order: order.amount), sw.DataStream[tuple[str, float]])
assert_type(by_user.max(lambda order: order.items), sw.DataStream[tuple[str, int]])
assert_type(by_user.min("amount"), sw.DataStream[Order])
assert_type(by_user.max_by(lambda order: order.amount), sw.DataStream[Order])
assert_type(by_user.aggregate(Mean()), sw.DataStream[float])


def total(order: Order, so_far: float | None) -> tuple[str, float]:
    return order.user, (so_far or 0.0) + order.amount


def rises(order: Order, last: float | None) -> tuple[list[float], float | None]:
    return ([order.amount] if last is not None and order.amount > last else []), order.amount


assert_type(by_user.map_with_state(total), sw.DataStream[str])
assert_type(by_user.flat_map_with_state(rises, ttl=sw.StateTtlConfig("1h")), sw.DataStream[float])
assert_type(
    by_user.filter_with_state(lambda order, last: (order.amount != last, order.amount)), sw.DataStream[Order]
)
assert_type(orders.inspect(print), sw.DataStream[Order])
assert_type(orders.branch(lambda order: order.amount > 1), tuple[sw.DataStream[Order], sw.DataStream[Order]])
assert_type(by_user.process(Changes()), sw.DataStream[int])
assert_type(by_user.process(keyed), sw.DataStream[bytes])
assert_type(by_user.map(lambda order: order.items), sw.DataStream[int])

assert_type(lines.union(lines, lines.rebalance()), sw.DataStream[str])
assert_type(lines.shuffle(), sw.DataStream[str])
assert_type(lines.partition_custom(lambda key, n: key % n, lambda line: len(line)), sw.DataStream[str])
assert_type(lines.name("lines").uid("lines").set_parallelism(2), sw.DataStream[str])
assert_type(by_user.count().name("count"), sw.DataStream[tuple[str, int]])

both = lines.connect(orders)
assert_type(both, sw.ConnectedStreams[str, Order])
assert_type(both.map(Labelled()), sw.DataStream[bytes])
assert_type(both.map(lambda line: line.upper(), lambda order: order.user), sw.DataStream[str])
assert_type(both.map(len, lambda order: order.user), sw.DataStream[int | str])
assert_type(both.flat_map(str.split, lambda order: [order.items]), sw.DataStream[str | int])
assert_type(both.key_by(lambda line: line, lambda order: order.user), sw.ConnectedStreams[str, Order])
assert_type(lines.key_by(lambda line: line).connect(by_user).process(Meet()), sw.DataStream[float])
assert_type(lines.broadcast(), sw.DataStream[str])
assert_type(lines.broadcast(RULES), sw.BroadcastStream[str])
assert_type(orders.connect(lines.broadcast(RULES)).process(LookedUp()), sw.DataStream[bytes])
assert_type(by_user.connect(lines.broadcast(RULES)).process(KeyedLookedUp()), sw.DataStream[int])

near = lines.key_by(lambda line: line).interval_join(by_user).between("-5s", "5s")
assert_type(near, sw.IntervalJoined[str, Order])
assert_type(
    near.upper_bound_exclusive().apply(lambda line, order: (line, order.items)), sw.DataStream[tuple[str, int]]
)
assert_type(near.process(lambda line, order, ctx: [order.amount * ctx.get_timestamp()]), sw.DataStream[float])
as_of = by_user.asof_join(lines.key_by(lambda line: line), tolerance="1h", how="inner")
assert_type(as_of.apply(lambda order, line: order.items), sw.DataStream[int])
tens = sw.windows.TumblingEventTimeWindows("10s")
joined = lines.join(orders).where(lambda line: line).equal_to(lambda order: order.user).window(tens)
assert_type(joined.apply(lambda line, order: order.items), sw.DataStream[int])
grouped = lines.co_group(orders).where(lambda line: line).equal_to(lambda order: order.user).window(tens)
assert_type(grouped.allowed_lateness("1s").apply(lambda lines, orders: lines), sw.DataStream[str])


windowed = by_user.window(tens)
assert_type(windowed, sw.WindowedStream[Order, str])
assert_type(windowed.allowed_lateness("1s").trigger(sw.windows.CountTrigger(3)), sw.WindowedStream[Order, str])
assert_type(windowed.reduce(lambda a, b: a if a.amount > b.amount else b), sw.DataStream[Order])
assert_type(windowed.aggregate(Mean()), sw.DataStream[float])
assert_type(
    windowed.aggregate(Mean(), lambda user, window, found: [(user, found[0])]), sw.DataStream[tuple[str, float]]
)
assert_type(windowed.process(lambda user, window, orders: [len(orders)]), sw.DataStream[int])
assert_type(windowed.count(), sw.DataStream[tuple[str, int]])
assert_type(windowed.sum("amount"), sw.DataStream[Order])
assert_type(windowed.max(lambda order: order.items), sw.DataStream[tuple[str, int]])
assert_type(orders.window_all(tens), sw.AllWindowedStream[Order])
assert_type(orders.window_all(tens).aggregate(Mean()), sw.DataStream[float])
assert_type(orders.window_all(tens).apply(lambda window, orders: [orders[0].user]), sw.DataStream[str])
assert_type(orders.count_window_all(3).sum(lambda order: order.items), sw.DataStream[int])


class Totals(sw.KeyedBatchProcessFunction[str, Order, float]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.total: sw.ValueState[float] = context.get_state(sw.ValueStateDescriptor("total", float, 0.0))
        self.seen: sw.MapState[str, int] = context.get_map_state(sw.MapStateDescriptor("seen"))

    def process_batch(
        self, values: Sequence[Order], ctx: sw.KeyedBatchProcessFunction.Context
    ) -> sw.Batch[float] | None:
        assert_type(ctx.bulk(self.total), MutableMapping[Any, float])
        assert_type(ctx.bulk(self.seen), Mapping[Any, MutableMapping[str, int]])
        assert_type(self.seen.get("a"), int | None)
        assert_type(self.seen.get("a", 0), int)
        assert_type(self.seen.get("a", b""), int | bytes)
        return None


class Sizes(sw.BatchProcessFunction[str, int]):
    def process_batch(self, values: Sequence[str], ctx: sw.BatchProcessFunction.Context) -> list[int]:
        return [len(value) for value in values]


assert_type(by_user.process(Totals()), sw.DataStream[float])
assert_type(lines.process(Sizes()), sw.DataStream[int])

late = sw.OutputTag[bytes]("late")
assert_type(lines.process(Split()).get_side_output(late), sw.DataStream[bytes])

loop = flow.from_sequence(1, 10).iterate()
assert_type(loop, sw.IterativeStream[int])
assert_type(loop.close_with(loop.map(lambda n: n - 1).filter(lambda n: n > 0)), sw.DataStream[int])

assert_type(lines.collect(), sw.Collected[str])
assert_type(lines.print("label").name("out"), sw.DataStreamSink)
assert_type(lines.for_each(print), sw.DataStreamSink)
assert_type(flow.source("socket", host="localhost", port=9999), sw.DataStream[Any])
assert_type(flow.source("socket", host="localhost").returns(str), sw.DataStream[str])
assert_type(flow.generate(count=3), sw.DataStream[int])
assert_type(flow.generate(lambda n: str(n), count=3, rate=10), sw.DataStream[str])
assert_type(flow.from_function(lambda: iter([1.0])), sw.DataStream[float])
assert_type(flow.run(parallelism=2), sw.JobResult)


# ---- state, options and sources -----------------------------------------------------------------------------


class Counts(sw.KeyedProcessFunction[str, Order, int]):
    COUNT = sw.ValueStateDescriptor("count", int, default=0)
    ANYTHING = sw.ValueStateDescriptor("anything")
    LAST: sw.ValueStateDescriptor[int | None] = sw.ValueStateDescriptor("last", int)

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = assert_type(context.get_state(self.COUNT), sw.ValueState[int])
        self.anything = assert_type(context.get_state(self.ANYTHING), sw.ValueState[Any])
        self.last = assert_type(context.get_state(self.LAST), sw.ValueState[int | None])
        self.items = assert_type(
            context.get_map_state(sw.MapStateDescriptor("items", float, key_type=str)), sw.MapState[str, float]
        )
        self.texts = assert_type(context.get_list_state(sw.ListStateDescriptor("texts", str)), sw.ListState[str])
        self.most = assert_type(
            context.get_reducing_state(sw.ReducingStateDescriptor("most", int, reduce=lambda a, b: a + b)),
            sw.ReducingState[int],
        )
        self.mean = assert_type(
            context.get_aggregating_state(sw.AggregatingStateDescriptor("mean", aggregate=Mean())),
            sw.AggregatingState[Order, float],
        )

    def process_element(self, value: Order, ctx: sw.KeyedProcessFunction.Context[str]) -> Iterator[int]:
        self.count.update(self.count.value() + 1)
        self.items[value.user] = self.items.get(value.user, 0.0) + value.amount
        self.texts.append(assert_type(ctx.get_current_key(), str))
        ctx.timer_service().register_event_time_timer(datetime.now(UTC))
        yield sum(len(text) for text in self.texts)


settings: dict[str, Any] = {"parallelism": 2}
flow.run(parallelism=2, checkpoint_interval=timedelta(seconds=10), checkpoints=Path("here"), **settings)
assert_type(flow.source(FilesSource.json_lines("orders", type=Order)), sw.DataStream[Order])
assert_type(flow.source(FilesSource.csv("orders", type=dict[str, str])), sw.DataStream[dict[str, str]])
assert_type(flow.source(FilesSource.json_lines("orders")), sw.DataStream[Any])
assert_type(flow.source(FilesSource.text("lines")), sw.DataStream[str])
