"""Jobs from Kafka to Kafka whose processes are killed: examples/kafka_orders.py, checked by its own consumer."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway.testing.kafka import KafkaCluster

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(PATIENT_S)]

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "kafka_orders.py")


class Job:
    """The example as a job of two workers that never ends, with topics of its own."""

    def __init__(self, topics: Any, directory: Path) -> None:
        self.directory = directory
        self.topics = topics
        self.environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": topics.servers,
            "KAFKA_ORDERS": topics.make(4),
            "KAFKA_TOTALS": topics.make(2),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.produced = 0

    def example(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLE, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout
        return done.stdout

    def produce(self, count: int) -> None:
        self.example("produce", "--first", str(self.produced), "--count", str(count))
        self.produced += count

    def start(self) -> None:
        options = ["--workers=2", "--checkpoint-interval=300ms", "--checkpoints=kept", "--resume", "--quiet"]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluiceway", "run", *options, EXAMPLE, "--follow"],
                env=self.environment,
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )

    def checkpoints(self) -> set[Path]:
        return {path.parent for path in (self.directory / "kept").glob("*/chk-*/metadata.json")}

    def wait_for_checkpoints(self, count: int) -> None:
        """Wait until so many checkpoints have completed from now on."""
        seen = before = self.checkpoints()

        def enough() -> bool:
            nonlocal seen
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "log").read_text()
            seen = seen | self.checkpoints()
            return len(seen - before) >= count

        until(enough)

    def workers(self) -> list[int]:
        assert self.process is not None
        told = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(line.split()[0]) for line in told.stdout.splitlines() if "sluiceway.entrypoint.worker" in line]

    def kill(self, who: str) -> None:
        assert self.process is not None
        if who == "worker":
            os.kill(random.choice(self.workers()), signal.SIGKILL)
            return
        self.process.kill()
        self.process.wait()

    def result(self) -> dict[str, int]:
        return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", self.example("check"))}

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENT_S)


@pytest.fixture
def job(kafka_topics: Any, tmp_path: Path) -> Iterator[Job]:
    job = Job(kafka_topics, tmp_path)
    try:
        yield job
    finally:
        if job.process is not None and job.process.poll() is None:
            job.process.kill()
            job.process.wait()


def wait_for_all_totals(job: Job) -> dict[str, int]:
    last: dict[str, int] = {}

    def complete() -> bool:
        nonlocal last
        last = job.result()
        return last["lost"] == 0

    until(complete)
    return last


def test_no_total_is_lost_or_doubled_whatever_is_killed(job: Job) -> None:
    job.produce(4_000)
    job.start()
    job.wait_for_checkpoints(2)
    for who in ("worker", "job", "worker", "job"):
        with ThreadPoolExecutor() as pool:
            produced = pool.submit(job.produce, 3_000)
            job.wait_for_checkpoints(1)
            job.kill(who)
            if who == "job":
                job.start()
            produced.result()
        job.wait_for_checkpoints(2)
    # A restored source has no watermark before new records of each partition: all may have been in the checkpoint.
    job.produce(400)
    result = wait_for_all_totals(job)
    job.end()
    assert result["orders"] == job.produced
    assert (result["doubled"], result["wrong"]) == (0, 0)


def test_the_example_does_it_all_in_one_process(job: Job) -> None:
    assert "'lost': 0, 'doubled': 0, 'wrong': 0" in job.example("--assert", "--count", "2000")


def test_the_commands_of_the_pages(kafka_topics: Any, tmp_path: Path) -> None:
    """What the README and the page say, with the broker of the tests instead of ``make kafka``."""
    job = Job(kafka_topics, tmp_path)
    scripts = Path(sys.executable).parent
    environment = {**job.environment, "PATH": f"{scripts}:{os.environ['PATH']}"}
    for page in ("README.md", "docs/howto/kafka.md"):
        commands = re.findall(r"^\$ (.*kafka_orders\.py.*)$", (ROOT / page).read_text(), re.M)
        assert len(commands) >= 3
        environment.update(KAFKA_ORDERS=kafka_topics.make(4), KAFKA_TOTALS=kafka_topics.make(2))
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).mkdir()
        (tmp_path / page / "examples").symlink_to(ROOT / "examples")
        for command in commands:
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path / page,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENT_S,
                check=False,
            )
            assert done.returncode == 0, (command, done.stdout)
        assert re.fullmatch(r"orders 20000, totals \d+, lost 0, doubled 0, wrong 0\n", done.stdout)


def test_the_program_beside_that_of_another_library(job: Job) -> None:
    """That of the page, made to end."""
    job.produce(2_000)
    page = (ROOT / "docs" / "howto" / "kafka.md").read_text()
    program = page.partition('title="totals.py"\n')[2].partition("```")[0]
    given = {
        "localhost:9092": job.environment["KAFKA_BOOTSTRAP_SERVERS"],
        '"orders", deserializer': f'"{job.environment["KAFKA_ORDERS"]}", stop="latest", deserializer',
        '"order-totals",\n        serializer': f'"{job.environment["KAFKA_TOTALS"]}",\n        serializer',
    }
    for there, here in given.items():
        assert there in program
        program = program.replace(there, here)
    (job.directory / "totals.py").write_text(program)
    options = ["--checkpoint-interval", "5s", "--checkpoints", "kept", "--resume"]
    subprocess.run(
        [sys.executable, "-m", "sluiceway", "run", *options, "totals.py"],
        cwd=job.directory,
        check=True,
        timeout=PATIENT_S,
    )
    totals = [json.loads(message.value()) for message in job.topics.read(job.environment["KAFKA_TOTALS"])]
    assert sum(total["orders"] for total in totals) == 2_000
    assert len({(total["product"], total["start"]) for total in totals}) == len(totals)


def test_a_broker_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    # The fixture of the other tests has fetched the jars, or they have been skipped.
    errors = tmp_path / "errors"  # the client library logs there as it likes
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluiceway.testing.kafka", "--port", "0", "--topic", "there:3"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # As from a terminal, also where SIGINT is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told and "no broker:" in errors.read_text():
            pytest.skip(errors.read_text())
        address = re.match(r"Apache Kafka [\d.]+ at (127\.0\.0\.1:\d+)\. Ctrl-C ends it\.$", told)
        assert address, (told, errors.read_text())
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": address[1]}).list_topics(timeout=60).topics
        assert len(topics["there"].partitions) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_named(kafka_broker: KafkaCluster) -> None:
    port = kafka_broker.bootstrap_servers.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway.testing.kafka", "--port", port],
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"no broker: port {port} of 127.0.0.1 cannot be used: Address already in use\n"
