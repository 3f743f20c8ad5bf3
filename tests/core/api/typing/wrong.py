"""Read by mypy, never run: every line with a mark at its end must be an error of that kind."""

import sluiceway as sw


class Both(sw.CoMapFunction[str, int, int]):
    def map1(self, value: str) -> int:
        return int(value)

    def map2(self, value: int) -> int:
        return value


class Write(sw.BroadcastProcessFunction[str, int, int]):
    def process_element(self, value: str, ctx: sw.BroadcastProcessFunction.ReadOnlyContext) -> list[int]:
        ctx.get_broadcast_state(RULES).put(value, 1)  # [attr-defined]
        return []

    def process_broadcast_element(self, value: int, ctx: sw.BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put("a", value)


RULES = sw.MapStateDescriptor("rules")


class Parse(sw.MapFunction[str, int]):
    def map(self, value: str) -> int:
        return int(value)


flow = sw.Pipeline("typing")
lines = flow.from_collection(["a"])
numbers = lines.map(len)

lines.reduce(lambda a, b: a)  # [attr-defined]
lines.count()  # [attr-defined]
lines.window()  # [attr-defined]
lines.mapp(len)  # [attr-defined]
flow.map(len)  # [attr-defined]
lines.print().map(len)  # [attr-defined]
lines.map(1)  # [arg-type]
numbers.map(Parse())  # [arg-type]
numbers.map(lambda n: n.upper())  # [attr-defined]
lines.flat_map(lambda line: len(line))  # [arg-type, return-value]
lines.union(numbers)  # [arg-type]
lines.connect(numbers).map(Both())
numbers.connect(lines).map(Both())  # [arg-type, call-overload]
lines.connect(numbers).map(str)  # [arg-type, call-overload]
lines.connect(numbers).filter(str)  # [attr-defined]
lines.connect(numbers.broadcast(RULES)).process(Both())  # [arg-type]
lines.key_by(lambda line: line).interval_join(numbers)  # [arg-type]
lines.key_by(lambda line: line).interval_join(numbers.key_by(str)).apply(max)  # [attr-defined]
lines.join(numbers).where(len).equal_to(lambda n: n.upper())  # [attr-defined]
lines.key_by(lambda line: line).filter(bool).reduce(lambda a, b: a)  # [attr-defined]
lines.key_by(lambda line: line).rebalance().count()  # [attr-defined]
lines.key_by(lambda line: line).union(lines.key_by(lambda line: line)).reduce(lambda a, b: a)  # [attr-defined]
lines.key_by(lambda line: line).reduce(lambda a, b: 1)  # [arg-type, return-value]
lines.key_by(lambda line: line.missing)  # [attr-defined]
lines.set_parallelism("2")  # [arg-type]
