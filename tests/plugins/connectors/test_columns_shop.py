"""examples/columns_shop.py: from Parquet and Kafka to Parquet and PostgreSQL, with its processes killed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(PATIENT_S)]

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "columns_shop.py")
RUN = [
    "--workers=2",
    "--parallelism=2",
    "--checkpoint-interval=200ms",
    "--checkpoints=kept",
    "--resume",
    "--quiet",
]


class Shop:
    """The example, with a topic, a table and a directory of its own."""

    def __init__(self, topics: Any, database: str, place: Path) -> None:
        self.place = place
        self.environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": topics.servers,
            "SHOP_ORDERS": topics.make(4),
            "SHOP_DATABASE": database,
        }

    def example(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLE, *arguments],
            env=self.environment,
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout
        return done.stdout

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.place / "log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sluiceway", "run", *RUN, EXAMPLE, "archive", "known", "--follow"],
                env=self.environment,
                cwd=self.place,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return (self.place / "log").read_text()

    def checkpoints(self) -> set[Path]:
        return {path.parent for path in (self.place / "kept").glob("*/chk-*/metadata.json")}

    def wait_for_checkpoints(self, process: subprocess.Popen[bytes], count: int) -> None:
        seen = before = self.checkpoints()

        def enough() -> bool:
            nonlocal seen
            assert process.poll() is None, self.log()
            seen = seen | self.checkpoints()
            return len(seen - before) >= count

        until(enough)


def test_the_commands_of_the_page(kafka_topics: Any, postgresql: str, tmp_path: Path) -> None:
    shop = Shop(kafka_topics, postgresql, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    scripts = Path(sys.executable).parent
    page = (ROOT / "docs" / "howto" / "columns.md").read_text().replace("\\\n", "")
    commands = re.findall(r"^\$ (.*columns_shop\.py.*)$", page, re.M)
    assert len(commands) == 4
    for command in commands:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env={**shop.environment, "PATH": f"{scripts}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout)
    assert done.stdout in page


@pytest.mark.slow
def test_no_order_and_no_sum_is_lost_or_doubled_whatever_is_killed(
    kafka_topics: Any, postgresql: str, tmp_path: Path
) -> None:
    shop = Shop(kafka_topics, postgresql, tmp_path)
    assert shop.example("write", "archive") == "20000 orders written to archive\n"
    shop.example("produce", "--count", "4000")
    process = shop.start()
    try:
        for round_ in range(2):
            shop.wait_for_checkpoints(process, 2)
            shop.example("produce", "--first", str(24_000 + 1_000 * round_), "--count", "1000")
            if round_ % 2:
                process.kill()
                process.wait()
                process = shop.start()
                continue
            told = subprocess.run(
                ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
                capture_output=True,
                text=True,
                check=False,
            )
            workers = [line.split()[0] for line in told.stdout.splitlines() if "entrypoint.worker" in line]
            os.kill(int(random.choice(workers)), signal.SIGKILL)
        shop.wait_for_checkpoints(process, 2)
        # A restored source has no watermark before new records of each partition: all may be in the checkpoint.
        shop.example("produce", "--first", "26000", "--count", "400")
        until(lambda: " lost 0," in shop.example("check", "known", "--count", "6400"))
        process.terminate()
        process.wait(PATIENT_S)
    finally:
        process.kill()
        process.wait()
    assert shop.example("check", "known", "--count", "6400").endswith(" lost 0, doubled 0, wrong 0\n")
    assert (tmp_path / "known" / "day=2026-01-02" / "country=DE").is_dir()
