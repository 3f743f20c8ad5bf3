"""A job on Spark to which something happens; run as a program, as what happens may be the end of it.

python equality_kills.py PLACE MASTER COUNT {"options": ..., "dies": ...}
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sluiceway as sw
from sluiceway.testing import KeySequence, NumberFiles

KEYS = 12


class KillsAt(sw.MapFunction[int, int]):
    """Passes numbers on, and once kills what it runs in when one of them comes."""

    def __init__(self, marks: Path, at: dict[str, int]) -> None:
        self.marks = marks
        self.at = {number: what for what, number in at.items()}

    def map(self, value: int) -> int:
        what = self.at.get(value)
        if what is not None and first(self.marks, what):
            os.kill(VICTIMS[what](), signal.SIGKILL)
        return value


class KillsTheDriver(NumberFiles):
    """Ends the program in the midst of a commit: numbers are there that Spark does not know to be there."""

    def __init__(self, directory: Path, marks: Path, in_commit: int | None) -> None:
        super().__init__(directory)
        self.marks = marks
        self.in_commit = in_commit
        self.commits = 0

    def commit(self, transaction: str) -> None:
        super().commit(transaction)
        self.commits += 1
        if self.in_commit is not None and self.commits >= self.in_commit and first(self.marks, "driver"):
            os.kill(os.getpid(), signal.SIGKILL)


def first(marks: Path, what: str) -> bool:
    try:
        (marks / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor() -> int:
    """The JVM that has started the daemon of the Python worker that this is."""
    pid = os.getpid()
    while "java" not in os.readlink(f"/proc/{pid}/exe"):
        pid = parent_of(pid)
    return pid


VICTIMS: dict[str, Callable[[], int]] = {"worker": os.getpid, "executor": executor}


def pipeline(place: Path, count: int, dies: dict[str, int]) -> sw.Pipeline:
    flow = sw.Pipeline("kills", parallelism=2)
    numbers = flow.generate(count=count).uid("numbers")
    checked = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("checked")
    killing = checked.map(KillsAt(place / "marks", {k: v for k, v in dies.items() if k in VICTIMS})).uid("killing")
    killing.sink(KillsTheDriver(place / "out", place / "marks", dies.get("driver"))).uid("out")
    return flow


def main() -> None:
    place, master, count, asked = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    (place / "marks").mkdir(exist_ok=True)
    from sluiceway_spark import SessionConf

    conf: dict[str, Any] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": False,
    }
    SessionConf.of(master, None, conf).session()
    result = pipeline(place, count, asked["dies"]).run(engine="spark", **asked["options"])
    print(json.dumps({"status": result.status.value}))


if __name__ == "__main__":
    main()
