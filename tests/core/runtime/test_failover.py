"""A job with a restart strategy goes on after a failure: the region that failed begins anew, and only that."""

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.engine import JobStatus


class FailsOnce(sw.MapFunction[int, int]):
    """Fails at one record, in its first attempt."""

    def __init__(self, at: int, times: int = 1) -> None:
        self.at = at
        self.times = times

    def open(self, context: sw.RuntimeContext) -> None:
        self.attempt = context.attempt_number

    def map(self, value: int) -> int:
        if value == self.at and self.attempt < self.times:
            raise RuntimeError(f"attempt {self.attempt}")
        return value


def run(flow: sw.Pipeline, **options: Any) -> sw.JobResult:
    return flow.run(restart="fixed-delay:3:0ms", batch_size=10, **options)


def test_the_job_is_run_again_from_its_beginning() -> None:
    flow = sw.Pipeline("again")
    out = flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    assert run(flow).status is JobStatus.FINISHED
    # Without checkpoints a region starts at its beginning, and what it had given out stays given out.
    assert out[-100:] == list(range(100))
    assert set(out) == set(range(100))


def test_each_region_for_itself() -> None:
    flow = sw.Pipeline("two", parallelism=2)
    out = flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    run(flow)
    assert sorted(v for v in out if v < 50) == list(range(50)), "the other half was not read again"
    assert set(out) == set(range(100))


def test_a_strategy_that_is_used_up_fails_the_job_and_says_so() -> None:
    flow = sw.Pipeline("never")
    flow.from_collection(range(10)).map(FailsOnce(5, times=99)).collect()
    with pytest.raises(RuntimeError, match="attempt 3") as caught:
        run(flow)
    assert "the job is not restarted: 3 restarts were not enough" in caught.value.__notes__


def test_keyed_state_begins_anew() -> None:
    flow = sw.Pipeline("keyed", parallelism=2)
    counts = flow.from_collection(range(100)).map(FailsOnce(57)).key_by(lambda v: v % 3).count()
    out = counts.collect()
    run(flow)
    assert max(n for _, n in out) == 34
