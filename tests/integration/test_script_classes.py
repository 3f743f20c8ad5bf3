"""Keys and state of classes that a script defines, over runs of it in one process and on workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw

SCRIPT = """
import asyncio, json, sys
from dataclasses import dataclass
from enum import Enum

import sluiceway as sw

WORKERS, PLACE, BEFORE, BACKEND = int(sys.argv[1]), sys.argv[2], sys.argv[3] or None, sys.argv[4]

class Kind(Enum):
    EVEN = 0
    ODD = 1

@dataclass(frozen=True)
class Meter:
    site: str
    kind: Kind

class Total:
    def __init__(self):
        self.count = 0

class Count(sw.KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(sw.ValueStateDescriptor("total"))

    def process_element(self, value, ctx):
        total = self.total.value() or Total()
        assert isinstance(total, Total)
        total.count += 1
        self.total.update(total)
        yield value.kind.name, total.count

flow = sw.Pipeline("meters")
meters = flow.generate(rate=500).uid("numbers").map(lambda n: Meter("roof", Kind(n % 2)))
counts = meters.key_by(lambda meter: meter).process(Count()).uid("count").collect()

async def main():
    options = {"workers": WORKERS, "state_backend": BACKEND, "from_checkpoint": BEFORE}
    handle = await flow.start(checkpoint_interval="100ms", **options)
    while len({name for name, _ in counts}) < 2:
        await asyncio.sleep(0.01)  # polls
    place = await handle.stop(savepoint=PLACE)
    print(json.dumps([place, [min(c for n, c in counts if n == name) for name in ("EVEN", "ODD")],
                      [max(c for n, c in counts if n == name) for name in ("EVEN", "ODD")]]))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(("first", "second"), [pair for pair in product((0, 2), (0, 2)) if pair != (0, 0)])
@pytest.mark.parametrize("backend", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_another_run_goes_on_with_them(tmp_path: Path, first: int, second: int, backend: str) -> None:
    script = tmp_path / "meters.py"
    script.write_text(SCRIPT)

    def run(workers: int, before: str) -> tuple[str, list[int], list[int]]:
        command = [sys.executable, str(script), str(workers), str(tmp_path / "saved"), before, backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        place, least, most = json.loads(done.stdout)
        return place, least, most

    place, _, reached = run(first, "")
    _, began, _ = run(second, place)
    assert began == [count + 1 for count in reached]


RULES = sw.MapStateDescriptor[Any, int]("rules")


class CountByRule(sw.KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update(self.count.value() + 1)
        yield value.number, self.count.value(), ctx.get_broadcast_state(RULES).get(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value, value.number + 100)


@pytest.mark.parametrize(("first", "second"), list(product((0, 2), (0, 2))))
def test_classes_that_a_function_defines_are_those_of_the_program(tmp_path: Path, first: int, second: int) -> None:
    def pipeline() -> tuple[sw.Pipeline, list[Any]]:
        @dataclass(frozen=True)
        class Meter:
            number: int

        flow = sw.Pipeline("meters")
        rules = flow.from_collection([0, 1]).uid("rules").map(lambda n: Meter(n)).broadcast(RULES)
        meters = flow.generate(rate=500).uid("numbers").map(lambda n: Meter(n % 2)).key_by(lambda meter: meter)
        return flow, meters.connect(rules).process(CountByRule()).uid("count").collect()

    async def run(workers: int, before: str | None) -> tuple[str, list[Any]]:
        flow, counts = pipeline()
        handle = await flow.start(workers=workers, checkpoint_interval="100ms", from_checkpoint=before)
        while {number for number, _, _ in counts} != {0, 1} or counts[-1][2] is None:
            await asyncio.sleep(0.01)  # polls
        return await handle.stop(savepoint=tmp_path), counts

    place, counts = asyncio.run(run(first, None))
    reached = [max(n for number, n, _ in counts if number == which) for which in (0, 1)]
    _, counts = asyncio.run(run(second, place))
    began = [next((n, rule) for number, n, rule in counts if number == which) for which in (0, 1)]
    assert began == [(reached[0] + 1, 100), (reached[1] + 1, 101)]
