"""Keys and state of classes that a script defines, over runs of it in one process and on workers."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

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
