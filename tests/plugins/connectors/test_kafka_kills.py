"""KafkaSink's transactions when its process or a broker dies at any point of a checkpoint or of a restore."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConnectorError
from sluiceway.testing.drivers import SinkDriver
from sluiceway.testing.kafka import KafkaCluster

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from tests.plugins.connectors.kafkawriter import POINTS, POINTS_OF_RECOVERY

from sluiceway_kafka import KafkaSink, KafkaSource
from sluiceway_kafka._connection import connection_of
from sluiceway_kafka._coordinator import Coordinator
from sluiceway_kafka._producer import Outbox
from sluiceway_kafka._transactions import TransactionalWriter

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(PATIENT_S)]

_prefixes = itertools.count()


class Job:
    """Attempts of kafkawriter.py, one after the other."""

    def __init__(self, topics: Any, directory: Path) -> None:
        self._topics = topics
        self._topic = topics.make()
        self._directory = directory
        self.prefix = f"kills{next(_prefixes)}"
        self._log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        total: int,
        point: str = "-",
        occurrence: int = 1,
        number: signal.Signals = signal.SIGKILL,
        parallelism: int = 2,
    ) -> subprocess.Popen[bytes]:
        numbers = [str(int(each)) for each in (occurrence, number, parallelism, total)]
        texts = [self._topics.servers, self._topic, self.prefix, str(self._directory / "checkpoint"), point]
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.plugins.connectors.kafkawriter", *texts, *numbers],
                cwd=Path(__file__).parents[3],
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def run(self, *arguments: Any, **named: Any) -> int:
        return self.start(*arguments, **named).wait(PATIENT_S)

    def log(self) -> str:
        return self._log.read_text()

    def written(self) -> list[int]:
        return sorted(int(value) for value in self._topics.values(self._topic))


@pytest.fixture
def job(kafka_topics: Any, tmp_path: Path) -> Iterator[Job]:
    job = Job(kafka_topics, tmp_path)
    try:
        yield job
    finally:
        for process in job.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "points",
    [
        *((point,) for point in POINTS),
        *(("stored", point) for point in POINTS_OF_RECOVERY),
        ("marked", "fenced", "stored", "recommitted", "recovered"),
    ],
    ids="-".join,
)
def test_a_kill_at_any_point_loses_and_doubles_nothing(job: Job, points: tuple[str, ...]) -> None:
    for point in points:
        # A second occurrence falls between the two subtasks.
        occurrence = 1 if point in POINTS_OF_RECOVERY else 3
        assert job.run(30, point, occurrence) == -signal.SIGKILL, job.log()
    assert job.run(30) == 0, job.log()
    assert job.written() == list(range(30))


@pytest.mark.parametrize("point", ["written", "marked"])
def test_an_attempt_that_dies_before_its_first_checkpoint(job: Job, point: str) -> None:
    """It has committed what the checkpoint names, and has used the same ids again."""
    assert job.run(30, "stored") == -signal.SIGKILL, job.log()
    for _ in range(2):
        assert job.run(30, point, 2) == -signal.SIGKILL, job.log()
    assert job.run(30) == 0, job.log()
    assert job.written() == list(range(30))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_points_at_changing_parallelism(job: Job, seed: int) -> None:
    chance = random.Random(seed)
    total = 0
    for _ in range(15):
        total += 12
        point, occurrence = chance.choice([*POINTS, *POINTS_OF_RECOVERY]), chance.randint(1, 4)
        code = job.run(total, point, occurrence, parallelism=chance.randint(1, 4))
        assert code in (0, -signal.SIGKILL), job.log()
    assert job.run(total) == 0, job.log()
    written = job.written()
    assert written == list(range(len(written)))
    assert len(written) >= total


@pytest.mark.parametrize("point", ["written", "flushed", "marked", "stored"])
def test_an_attempt_that_wakes_up_after_its_successor_is_fenced(job: Job, point: str) -> None:
    """A process is suspended for longer than its job waits for it, and goes on beside the next attempt."""
    zombie = job.start(30, point, 3, signal.SIGSTOP)
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), job.log()
    assert job.run(30) == 0, job.log()
    checkpoint = (job._directory / "checkpoint").read_bytes()
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(PATIENT_S) == 1
    assert "ConnectorError: " in job.log()
    assert (job._directory / "checkpoint").read_bytes() == checkpoint
    assert job.written() == list(range(30))


# ---- brokers -------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_logs_of_clients(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs refused connections with tracebacks, and captured ones keep what their frames hold."""
    caplog.set_level("CRITICAL", "kafka")


def _write_while_a_broker_is_killed(cluster: KafkaCluster, topics: Any, topic: str, broker: int) -> list[str]:
    sink = KafkaSink(topics.servers, topic, guarantee="exactly-once", transactional_id_prefix="restart")
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        driver.checkpoint()
        driver.complete()
        driver.write(["b"])
        cluster.kill(broker)
        driver.write(["c"])
        cluster.start(broker)
        driver.checkpoint()  # waits for the broker
        driver.complete()
        driver.write(["d"])
        driver.checkpoint()
        cluster.kill(broker)
        cluster.start(broker)
        driver.complete()
        driver.write(["e"])
        driver.finish()
    return ["a", "b", "c", "d", "e"]


@pytest.mark.usefixtures("_no_logs_of_clients")
def test_a_broker_that_is_killed_and_restarted(kafka_topics: Any, tmp_path: Path) -> None:
    with KafkaCluster(root=tmp_path) as cluster:
        topics = type(kafka_topics)(cluster.bootstrap_servers)
        topic = topics.make()
        written = _write_while_a_broker_is_killed(cluster, topics, topic, 1)
        assert topics.values(topic) == written
        del topics


@pytest.mark.slow
@pytest.mark.usefixtures("_no_logs_of_clients")
@pytest.mark.parametrize("broker", [1, 2, 3])
def test_one_of_three_brokers_that_is_killed(kafka_topics: Any, tmp_path: Path, broker: int) -> None:
    with KafkaCluster(3, root=tmp_path) as cluster:
        topics = type(kafka_topics)(cluster.bootstrap_servers)
        topic = topics.make()
        written = _write_while_a_broker_is_killed(cluster, topics, topic, broker)
        assert topics.values(topic) == written
        del topics


# ---- rescaling and renaming ----------------------------------------------------------------------------------


@pytest.fixture
def _no_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that are closed leave their transactions open, as killed ones do."""
    monkeypatch.setattr(TransactionalWriter, "_abort", lambda self, current: None)


def _open_transactions(topics: Any, prefix: str) -> set[str]:
    coordinator = Coordinator(connection_of(topics.servers, None, "30s"))
    try:
        return {each.transactional_id for each in coordinator.list(f"{prefix}-") if each.state == "Ongoing"}
    finally:
        coordinator.close()


@pytest.mark.usefixtures("_no_aborts")
@pytest.mark.parametrize(
    "sequence", [(4, 2, 3, 1), (2, 3, 2), (3, 1, 3)], ids=lambda each: "-".join(map(str, each))
)
def test_open_transactions_of_another_parallelism(kafka_topics: Any, sequence: tuple[int, ...]) -> None:
    """Each time with transactions to commit and others to abort, of ids that earlier subtasks have had, too."""
    topic, prefix = kafka_topics.make(), f"rescaled{next(_prefixes)}"
    sink = KafkaSink(kafka_topics.servers, topic, guarantee="exactly-once", transactional_id_prefix=prefix)
    kept, numbers, expected = None, itertools.count(), []
    for parallelism in sequence:
        with SinkDriver(sink, parallelism, checkpoints=True, restored=kept) as driver:
            for subtask in range(parallelism):
                expected.append(str(next(numbers)))
                driver.write(expected[-1:], subtask=subtask)
            kept = driver.checkpoint()
            for subtask in range(parallelism):
                driver.write(["never"], subtask=subtask)
                driver.flush(subtask)
        assert len(_open_transactions(kafka_topics, prefix)) == 2 * parallelism
    with SinkDriver(sink, 2, checkpoints=True, restored=kept):
        assert not _open_transactions(kafka_topics, prefix)
        assert sorted(kafka_topics.values(topic)) == expected


@pytest.mark.usefixtures("_no_aborts")
def test_a_restore_says_which_transactions_of_another_prefix_it_ends(
    kafka_topics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sluiceway_kafka")
    topic, name = kafka_topics.make(), f"renamed{next(_prefixes)}"

    def sink(prefix: str) -> KafkaSink:
        return KafkaSink(kafka_topics.servers, topic, guarantee="exactly-once", transactional_id_prefix=prefix)

    with SinkDriver(sink(f"{name}old"), 2, checkpoints=True) as driver:
        driver.write(["kept"], subtask=1)
        kept = driver.checkpoint()
        driver.write(["never"], subtask=0)
        driver.write(["never"], subtask=1)
        for subtask in range(2):
            driver.flush(subtask)
    (committed,) = [each.transactional_id for some in kept for each in some if each.transactional_id]
    aborted = _open_transactions(kafka_topics, f"{name}old") - {committed}
    assert len(aborted) == 2
    with SinkDriver(sink(f"{name}new"), 3, checkpoints=True, restored=kept) as driver:
        assert not _open_transactions(kafka_topics, f"{name}old")
        driver.write(["new"], subtask=2)
        driver.finish()
    assert kafka_topics.values(topic) == ["kept", "new"]
    said = [record.getMessage() for record in caplog.records]
    assert [each for each in said if f"restored checkpoint: {committed} (number 1)" in each]
    assert {word for each in said if "aborted open" in each for word in aborted if word in each} == aborted


def test_open_transactions_of_another_prefix(job: Job, kafka_topics: Any) -> None:
    """Those that the checkpoint does not name are aborted, too: readers wait for open ones."""
    before = job.prefix
    assert job.run(30, "flushed", 5, parallelism=3) == -signal.SIGKILL, job.log()
    job.prefix = f"kills{next(_prefixes)}"
    assert job.run(30, parallelism=2) == 0, job.log()
    assert job.written() == list(range(len(job.written())))
    coordinator = Coordinator(connection_of(kafka_topics.servers, None, "30s"))
    try:
        left = coordinator.list(f"{before}-")
    finally:
        coordinator.close()
    assert {each.state for each in left} <= {"Empty", "CompleteAbort", "CompleteCommit"}


# ---- producers -----------------------------------------------------------------------------------------------


def test_a_producer_that_another_one_has_fenced(kafka_topics: Any) -> None:
    """Two jobs with one prefix: the message says what to look for."""
    prefix = f"fenced{next(_prefixes)}"
    topic = kafka_topics.make()
    sink = KafkaSink(kafka_topics.servers, topic, guarantee="exactly-once", transactional_id_prefix=prefix)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["mine"])
        with SinkDriver(sink, checkpoints=True) as other:
            other.write(["theirs"])
            with pytest.raises(ConnectorError, match=r"fenced.*transactional_id_prefix"):
                driver.checkpoint()
            other.finish()
    assert kafka_topics.values(topic) == ["theirs"]


@pytest.mark.parametrize("first", ["producer", "record"])
def test_a_job_whose_producer_is_fenced_ends_with_the_reason(
    kafka_topics: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The whole job, not the writer alone; whichever of the client's reports comes first."""
    fail = Outbox.fail

    def fail_after_a_record(outbox: Outbox, error: BaseException) -> None:
        while outbox.failure is None:
            outbox.producer.poll(0.1)  # polls
        fail(outbox, error)

    if first == "record":
        monkeypatch.setattr(Outbox, "fail", fail_after_a_record)
    prefix, given, topic = f"fencedjob{next(_prefixes)}", kafka_topics.make(), kafka_topics.make()
    kafka_topics.write(given, map(str, range(20)))

    def fence_at_ten(value: str) -> str:
        if value == "10":
            coordinator = Coordinator(connection_of(kafka_topics.servers, None, "30s"))
            for each in coordinator.list(f"{prefix}-"):
                coordinator.fence(each.transactional_id)
            coordinator.close()
        return value

    flow = sw.Pipeline("fenced")
    stream = flow.source(KafkaSource(kafka_topics.servers, given, stop="latest")).map(fence_at_ten)
    stream.sink(KafkaSink(kafka_topics.servers, topic, guarantee="exactly-once", transactional_id_prefix=prefix))
    with pytest.raises(ConnectorError, match=rf"fenced.*taken over transactional id '{prefix}-0-\d'"):
        flow.run(batch_size=1, checkpoint_interval="10min", restart="none")
    assert kafka_topics.values(topic) == []


@pytest.mark.parametrize("guarantee", ["none", "at-least-once", "exactly-once"])
def test_a_queue_that_is_full_holds_the_writer_up(kafka_topics: Any, guarantee: str) -> None:
    topic = kafka_topics.make()
    prefix = {"transactional_id_prefix": f"full{next(_prefixes)}"} if guarantee == "exactly-once" else {}
    sink = KafkaSink(
        kafka_topics.servers,
        topic,
        guarantee=guarantee,  # type: ignore[arg-type]
        properties={"queue.buffering.max.messages": 10, "linger.ms": 0},
        **prefix,  # type: ignore[arg-type]
    )
    numbers = [str(number) for number in range(1000)]
    with SinkDriver(sink, checkpoints=True) as driver:
        for first in range(0, 1000, 100):
            driver.write(numbers[first : first + 100])
        driver.finish()
        assert driver.waited > 0
    assert kafka_topics.values(topic) == numbers
