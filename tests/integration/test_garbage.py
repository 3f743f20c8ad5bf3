"""The garbage collector of a program that runs jobs in its own process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def _defaults(unfrozen: None) -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*DEFAULT)
    yield
    gc.set_threshold(*found)
    gc.enable()
    gc.unfreeze()  # what a test has frozen, which may hold what is not needed any more


def said(value: Any) -> tuple[int, int, bool]:
    return gc.get_threshold()[0], gc.get_freeze_count(), gc.isenabled()


def job(function: Any, values: Any = (0,)) -> sw.Pipeline:
    flow = sw.Pipeline("garbage")
    flow.from_collection(list(values)).map(function).sink(DiscardSink())
    return flow


def test_a_job_in_one_process_collects_seldom_and_restores_the_thresholds() -> None:
    flow = sw.Pipeline("garbage")
    out = flow.from_collection([0]).map(said).collect()
    flow.run()
    ((threshold, frozen, enabled),) = out
    assert (threshold, enabled) == (50_000, True)
    assert frozen < 2_000, "Python 3.12 has some of its own"
    assert gc.get_threshold() == DEFAULT


def test_so_does_one_whose_results_are_taken_one_by_one() -> None:
    flow = sw.Pipeline("garbage")
    with flow.from_collection(range(3)).map(said).execute_and_collect() as results:
        assert next(results)[0] == 50_000
    assert gc.get_threshold() == DEFAULT


def test_jobs_at_the_same_time_restore_them_when_the_last_has_ended() -> None:
    up = threading.Semaphore(0)
    released = {"first": threading.Event(), "second": threading.Event()}

    def waits_for(event: threading.Event) -> sw.Pipeline:
        return job(lambda value: (up.release(), event.wait()))

    async def main() -> None:
        handles = [await waits_for(event).start() for event in released.values()]
        for _ in handles:
            await asyncio.to_thread(up.acquire)
        assert gc.get_threshold()[0] == 50_000
        released["first"].set()
        await handles[0].result()
        assert gc.get_threshold()[0] == 50_000, "the second one runs"
        released["second"].set()
        await handles[1].result()
        assert gc.get_threshold() == DEFAULT

    asyncio.run(main())


def test_a_job_within_a_job_leaves_the_outer_ones_thresholds() -> None:
    def inner(value: int) -> int:
        job(abs).run()
        return gc.get_threshold()[0]

    flow = sw.Pipeline("outer")
    out = flow.from_collection([0]).map(inner).collect()
    flow.run()
    assert list(out) == [50_000]
    assert gc.get_threshold() == DEFAULT


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_job_that_fails_restores_them(error: type[BaseException]) -> None:
    def fails(value: int) -> int:
        raise error

    with pytest.raises(error):
        job(fails).run()
    assert gc.get_threshold() == DEFAULT


def test_a_job_that_is_cancelled_restores_them() -> None:
    async def main() -> None:
        flow = sw.Pipeline("endless")
        flow.generate(lambda n: n).sink(DiscardSink())
        async with await flow.start():
            pass

    asyncio.run(main())
    assert gc.get_threshold() == DEFAULT


def test_what_the_program_has_set_itself_stays() -> None:
    gc.set_threshold(100_000, 20, 20)
    gc.disable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    flow = sw.Pipeline("own")
    out = flow.from_collection([0]).map(said).collect()
    flow.run()
    ((threshold, during, enabled),) = out
    assert threshold == 100_000
    assert not enabled
    assert during == pytest.approx(frozen, rel=0.01)
    assert gc.get_freeze_count() == pytest.approx(frozen, rel=0.01)
    assert gc.get_threshold() == (100_000, 20, 20)
    assert not gc.isenabled()


class Counted:
    alive = most = 0

    def __init__(self) -> None:
        self.me = self  # only the collector gets rid of it
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


@pytest.fixture
def counted() -> Iterator[type[Counted]]:
    gc.collect()
    Counted.alive = Counted.most = 0
    yield Counted
    gc.collect()


def test_a_job_that_makes_a_cycle_of_each_record_stays_flat(counted: type[Counted]) -> None:
    def makes_one(value: int) -> int:
        counted()
        return value

    job(makes_one, range(400_000)).run()
    assert 10_000 < counted.most < 100_000


MANY_SHORT_JOBS = """
import gc
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

class Counted:
    alive = most = 0

    def __init__(self):
        self.me = self
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self):
        Counted.alive -= 1

found = gc.get_threshold()
for _ in range(400):
    held = [Counted() for _ in range(500)]
    flow = sw.Pipeline("garbage")
    flow.from_collection([0]).map(lambda value, held=held: len(held)).sink(DiscardSink())
    flow.run()
    del held, flow
assert gc.get_threshold() == found, gc.get_threshold()
print(Counted.most, gc.get_freeze_count())
"""


def test_many_short_jobs_leave_nothing_behind() -> None:
    """Objects that are frozen at each beginning and unfrozen at each end would never be collected.

    In a process of its own: the more there is from before, the later comes a full collection.
    """
    ran = subprocess.run([sys.executable, "-c", MANY_SHORT_JOBS], check=True, capture_output=True, text=True)
    most, frozen = map(int, ran.stdout.split())
    assert most < 100_000, "of 200,000"
    assert frozen < 2_000, "Python 3.12 has some of its own"
