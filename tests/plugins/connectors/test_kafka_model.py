"""KafkaSink's transactions against a model of the brokers: processes die at any request, over many attempts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.testing.drivers import SinkDriver

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from tests.plugins.connectors.kafkamodel import (
    Broker,
    Connection,
    Consumer,
    Coordinator,
    DeadError,
    InlineExecutor,
    Process,
    Producer,
)

from sluiceway_kafka import KafkaSink, _transactions


@pytest.fixture(autouse=True, scope="module")
def _model() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_transactions, "Coordinator", lambda connection: Coordinator(connection._process))
        patch.setattr(_transactions, "ThreadPoolExecutor", InlineExecutor)
        yield


def sink(process: Process, prefix: str) -> KafkaSink:
    made = KafkaSink("model:1", "totals", guarantee="exactly-once", transactional_id_prefix=prefix)
    made._connection = Connection(process)  # type: ignore[assignment]
    return made


@dataclass
class Job:
    """A job over its attempts: what its newest checkpoint has, and what is written by then."""

    broker: Broker
    kept: Any = None
    stored: int = 0

    def attempt(self, prefix: str, parallelism: int, steps: int, dies_at: int, after: bool) -> bool:
        """Restore and take checkpoints, then die. Return whether it has come so far."""
        process = Process(self.broker, dies_at, after)
        try:
            with SinkDriver(sink(process, prefix), parallelism, checkpoints=True, restored=self.kept) as driver:
                assert sorted(map(int, self.broker.values)) == list(range(self.stored))
                position = self.stored
                for step in range(steps):
                    for subtask in range(parallelism):
                        if (step + subtask) % 3:  # some write nothing between two checkpoints
                            driver.write([str(position)], subtask=subtask)
                            position += 1
                    kept = driver.checkpoint()
                    self.kept, self.stored = kept, position
                    driver.complete()
                driver.write(["-1"])
                process.is_dead = True
                return True
        except DeadError:
            return False


attempts = st.tuples(
    st.sampled_from(["p", "q"]), st.integers(1, 3), st.integers(0, 4), st.integers(0, 60), st.booleans()
)


@given(st.sampled_from([0, 1, 2]), st.lists(attempts, max_size=8))
@example(2, [("p", 1, 4, 0, False)] * 4)
@example(0, [("p", 3, 4, 0, False), ("q", 2, 4, 0, False), ("p", 3, 4, 0, False)])
def test_nothing_is_lost_or_doubled(version: int, attempts: list[tuple[str, int, int, int, bool]]) -> None:
    job = Job(Broker(version))
    for attempt in attempts:
        job.attempt(*attempt)
    # A prefix that no checkpoint has been taken with is known to nobody.
    known = {"p", *(each.group[0] for some in job.kept or () for each in some)}
    job.attempt("p", 2, 0, 0, False)
    assert sorted(map(int, job.broker.values)) == list(range(job.stored))
    left = {name for name, each in job.broker.ids.items() if each.state == "Ongoing" and name[0] in known}
    assert left == {"p-0-0"}  # of the attempt that was the last


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_each_request_of_an_attempt(version: int, after: bool) -> None:
    """Between transactions whose producer ids are new, too."""
    for dies_at in itertools.count(1):
        job = Job(Broker(version))
        job.attempt("p", 2, 5, 0, False)
        ended = job.attempt("p", 2, 4, dies_at, after)
        job.attempt("p", 2, 1, 0, False)
        job.attempt("p", 2, 0, 0, False)
        assert job.broker.producers > 6  # more than there are ids: some have reached their last epoch
        if ended:
            break
    assert dies_at > 40


def test_another_prefix_and_more_subtasks_than_its_checkpoint_has() -> None:
    """Subtasks that get nothing of the checkpoint do not know its prefix; open transactions of it are ended."""
    for dies_at in itertools.count(1):
        job = Job(Broker(2))
        job.attempt("q", 1, 1, 0, False)
        kept, stored = job.kept, job.stored
        ended = job.attempt("q", 3, 1, dies_at, False)
        if job.kept is not kept or job.stored != stored or ended:
            break
        job.attempt("p", 2, 0, 0, False)
        assert {name for name, each in job.broker.ids.items() if each.state == "Ongoing"} == {"p-0-0"}
    assert dies_at > 10


@pytest.mark.parametrize(("sequence", "steps"), [((2, 1, 2), 4), ((40, 1), 3)], ids=["2-1-2", "40-1"])
def test_a_savepoint_can_be_restored_after_jobs_of_another_parallelism(
    sequence: tuple[int, ...], steps: int
) -> None:
    """Their subtasks replace markers of attempts that their own checkpoints do not name, or name among many."""
    job = Job(Broker(2))
    job.attempt("p", sequence[0], steps, 0, False)
    savepoint, stored = job.kept, job.stored
    for parallelism in sequence[1:]:
        assert job.attempt("p", parallelism, 4, 0, False)
    with SinkDriver(sink(Process(job.broker), "p"), sequence[0], checkpoints=True, restored=savepoint):
        assert len(job.broker.values) == job.stored > stored


def test_each_checkpoint_polls_the_clients_of_an_idle_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else empties their queues of log lines, which they fill while brokers are away."""
    polled: list[str] = []
    monkeypatch.setattr(Producer, "poll", lambda producer, timeout: polled.append(producer._name))
    consumers: list[str] = []
    monkeypatch.setattr(Consumer, "consumer_group_metadata", lambda consumer: consumers.append(consumer._group))
    monkeypatch.setattr(Consumer, "close", lambda consumer: consumers.remove(consumer._group))
    with SinkDriver(sink(Process(Broker(2)), "p"), checkpoints=True) as driver:
        assert not consumers
        for _ in range(2):
            polled.clear()
            driver.checkpoint()
            assert {"p-0-0", "p-0-1"} <= set(polled)
            driver.complete()
