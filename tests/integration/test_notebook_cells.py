"""A pipeline of a notebook's cell: defined in a __main__ that has no file, with an event loop running."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

from patience import PATIENT_S

CELL = """
    from dataclasses import dataclass
    import sluiceway as sw

    FACTOR = 3

    @dataclass
    class Point:
        x: int

    class Next(sw.MapFunction):
        def open(self, context):
            self.step = 1
        def map(self, point):
            return Point(point.x + self.step)

    def times(number):
        return Point(number * FACTOR)

    flow = sw.Pipeline("cell")
    points = flow.from_collection(range(6)).map(times).rebalance().map(Next())
    out = points.key_by(lambda point: point.x % 2).reduce(lambda a, b: max(a, b, key=lambda p: p.x)).collect()
    result = flow.run(workers=2)
    print(result.status.value, max(point.x for point in out), {type(point) is Point for point in out})
"""
NOTEBOOK = """
    import asyncio, sys, types

    async def run_cell(code):
        exec(compile(code, "<cell>", "exec"), vars(sys.modules["__main__"]))

    sys.modules["__main__"] = types.ModuleType("__main__")
    asyncio.run(run_cell({code!r}))
"""


def test_a_pipeline_in_a_cell_runs_on_workers() -> None:
    program = dedent(NOTEBOOK).format(code=dedent(CELL))
    # By its text alone: there is no file that a worker could import it from.
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S)
    assert run.stderr == ""
    assert run.stdout == "finished 16 {True}\n"
