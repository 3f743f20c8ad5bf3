"""Functions that fork: no child takes part in the job, and none hangs it."""

from __future__ import annotations

from typing import Any

import pytest
from patience import PATIENT_S

FORKS = """
import os
import sys


def fork(value, child=lambda: None):
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 1, status
    else:
        child()
    return value


class Everywhere(sw.ProcessFunction):
    def open(self, context):
        fork(0)

    def process_element(self, value, ctx):
        yield fork(value)

    def close(self):
        fork(0)


def several(value):
    yield fork(value)


def throw():
    raise ValueError("in the child")


async def fork_and_wait(value):
    return fork(value)


def in_process(value):
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=work, args=(value,))
    process.start()
    process.join()
    assert process.exitcode == 40 + value
    assert sys.gettrace() is None
    return value


def work(value):
    assert sys.gettrace() is None
    sys.exit(40 + value)


flow = sw.Pipeline("forks")
numbers = flow.from_collection(range(6))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("steps", "children"),
    [
        ("map(fork).map(lambda value: value)", 6),
        ("map(lambda value: fork(value, throw))", 6),
        ("map(lambda value: fork(value, lambda: sys.exit(0)))", 6),
        pytest.param("flat_map(several)", 6, marks=pytest.mark.slow),
        pytest.param("filter(lambda value: [fork(value)])", 6, marks=pytest.mark.slow),
        pytest.param("key_by(lambda value: 0).reduce(lambda one, other: fork(other))", 5, marks=pytest.mark.slow),
        ("key_by(lambda value: 0).count_window(3).reduce(lambda one, other: fork(other)).flat_map(range)", 4),
        ("process(Everywhere())", None),
        ("async_map(fork_and_wait, timeout=None)", 6),
        ("map(in_process)", 0),
    ],
)
def test_a_child_that_comes_back_ends(
    steps: str, children: int | None, workers: str, write: Any, start: Any
) -> None:
    write("job.py", f"{FORKS}\nnumbers.{steps}.print()\n")
    process = start("run", "--no-progress", "--workers", workers, "job.py")
    out, told = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, told
    count = 7 if "count_window" in steps else 6
    assert len(out.splitlines()) == count, out
    came_back = told.count("has come back from it: it ends here")
    if children is None:  # open() and close() of each subtask fork, too
        children = 6 + 2 * max(1, int(workers))
    # Of workers, standard error is in the log of the job manager as well or alone.
    assert came_back == children, told
    assert told.count("forks: finished") == 1, told


@pytest.mark.timeout(300)
def test_a_child_does_not_write_what_its_parent_writes(write: Any, start: Any) -> None:
    code = "forked = numbers.map(fork)\nforked.print()\nforked.for_each(fork)\n"
    write("job.py", f"{FORKS}\n{code}")
    process = start("run", "--no-progress", "job.py")
    out, told = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, told
    assert out.split() == ["0", "1", "2", "3", "4", "5"]
    assert told.count("was forked by a function of step 'map(fork)'") == 6
    assert told.count("was forked by a function of step 'sink(CallbackSink)'") == 6
