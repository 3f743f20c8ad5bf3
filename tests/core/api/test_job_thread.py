"""Programs that end while their jobs run."""

import subprocess
import sys

import pytest
from patience import PATIENT_S

SCRIPT = """
import asyncio
from threading import Event

import sluiceway as sw
from sluiceway.api import job_thread

entered = Event()

class Closes(sw.MapFunction):
    def map(self, value):
        entered.set()
        return value

    def close(self):
        print("closed")

async def start():
    flow.handle = await flow.start()
    entered.wait()

async def start_and_fail():
    await start()
    raise ValueError("of the program")

async def start_and_cancel():
    await start()
    flow.handle.cancel()
    await flow.handle.result()

flow = sw.Pipeline("test")
numbers = flow.generate(rate=100).map(Closes())
"""

START = "numbers.print(); asyncio.run(start())"
START_AND_FAIL = "numbers.print(); asyncio.run(start_and_fail())"
ITERATE = "records = numbers.execute_and_collect(); next(records)"
ENDED = "numbers.print(); asyncio.run(start_and_cancel())"
STUCK = """
numbers.for_each(lambda n: Event().wait())
asyncio.run(start())
job_thread._LONGEST_S = 0.01
"""


def ended(program: str) -> tuple[int, int, str]:
    """Run a program and return its exit code, how many functions were closed, and what it wrote to stderr."""
    command = [sys.executable, "-c", SCRIPT + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    return done.returncode, done.stdout.count("closed"), done.stderr


@pytest.mark.parametrize("program", [START, ITERATE, ENDED], ids=["start", "iterate", "ended"])
def test_a_job_ends_in_good_order_with_its_program(program: str) -> None:
    assert ended(program) == (0, 1, "")


def test_the_exit_code_is_that_of_the_program() -> None:
    code, closed, told = ended(START_AND_FAIL)
    assert (code, closed) == (1, 1)
    assert told.endswith("ValueError: of the program\n")


def test_a_job_that_does_not_end_does_not_keep_its_program_from_ending() -> None:
    assert ended(STUCK) == (0, 0, "")
