"""Read by mypy, never run: every line with a mark at its end must be an error of that kind."""

import sluiceway as sw


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
lines.key_by(lambda line: line).reduce(lambda a, b: 1)  # [arg-type, return-value]
lines.key_by(lambda line: line.missing)  # [attr-defined]
lines.set_parallelism("2")  # [arg-type]
