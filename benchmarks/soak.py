"""Kill workers and the job manager of a cluster at random, for minutes, and count what was lost or came twice.

A job of two subtasks numbers records, keeps the last number of each key in RocksDB and compares, and writes each
number into files and into a table of PostgreSQL, with incremental checkpoints. Meanwhile processes are ended with
SIGKILL, and the cluster is started again where its job manager was. At the end, files and table are read.

    python -m benchmarks.soak --minutes 10
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from benchmarks.clusterkills import ClusterKills
from benchmarks.postgresql import programs, server

__all__ = ["Counted", "Soak", "main"]

KEYS: Final = 5_000
READERS: Final = 2
PIPELINE: Final = """
    import sluiceway as sw
    from sluiceway_files import FilesSink
    from sluiceway_sql import SqlSink
    from sluiceway.testing import KeySequence

    KEYS = {keys}
    flow = sw.Pipeline("soak", parallelism={readers})
    numbers = flow.generate(rate={rate}).uid("numbers")
    in_order = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("last of each key")
    in_order.sink(FilesSink.text("{place}/files")).uid("files")
    table = "CREATE TABLE IF NOT EXISTS numbers (id BIGSERIAL PRIMARY KEY, n BIGINT NOT NULL)"
    in_order.map(lambda n: (n,)).sink(SqlSink("{url}", "numbers", ["n"], create=table)).uid("table")
"""


@dataclass
class Counted:
    """Received numbers of 0, 1, 2, ... that several readers read, each of them every n-th.

    Attributes:
        readers: how many; each may have stopped at another number.
        received: how many numbers have come.
        duplicates: how many of them had come before.
        out_of_order: how many came after a higher one of their key.
    """

    readers: int
    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    _seen: bytearray = field(default_factory=bytearray, repr=False)
    _last: dict[int, int] = field(default_factory=dict, repr=False)

    def take(self, numbers: Iterable[int]) -> None:
        """Numbers, in the order in which they were written; those of a key come from one subtask."""
        seen, last = self._seen, self._last
        for number in numbers:
            self.received += 1
            if number >= len(seen):
                seen.extend(bytes(number + 1 - len(seen) + 65_536))
            if seen[number]:
                self.duplicates += 1
            seen[number] = 1
            key = number % KEYS
            if number < last.get(key, -1):
                self.out_of_order += 1
            last[key] = max(number, last.get(key, -1))

    @property
    def lost(self) -> int:
        """Return the count of missing numbers below the last one of their reader."""
        missing = 0
        for reader in range(self.readers):
            lane = self._seen[reader :: self.readers].rstrip(b"\0")
            missing += lane.count(0)
        return missing

    def same_as(self, other: Counted) -> bool:
        """Return whether the same numbers were received there."""
        return self._seen.rstrip(b"\0") == other._seen.rstrip(b"\0")


class Soak(ClusterKills):
    """One run with files and a database.

    Args:
        place: a directory for all that it writes.
        url: of the database.
        rate: records per second.
        seed: of what is killed when.
    """

    def __init__(self, place: Path, url: str, rate: int, seed: int) -> None:
        pipeline = dedent(PIPELINE).format(keys=KEYS, readers=READERS, rate=rate, place=place, url=url)
        super().__init__(place, "soak", pipeline, "rocksdb", seed)
        self._url = url

    def in_files(self) -> Counted:
        """Return the numbers in the files."""
        counted = Counted(READERS)
        files = [(f, re.fullmatch(r"part-(\d+)-(\d+)-.*", f.name)) for f in (self.place / "files").iterdir()]
        for file, match in sorted(files, key=lambda one: (int(one[1][1]), int(one[1][2])) if one[1] else (-1, 0)):
            if match is None:
                self.problems.append(f"left over: {file.name}")
            else:
                counted.take(map(int, file.read_text().split()))
        return counted

    def in_table(self) -> Counted:
        """Return the numbers in the table."""
        from sqlalchemy import create_engine, text
        from sqlalchemy.pool import NullPool

        counted = Counted(READERS)
        with create_engine(self._url, poolclass=NullPool).connect() as connection:
            rows = connection.execution_options(stream_results=True).execute(
                text("SELECT n FROM numbers ORDER BY id")
            )
            counted.take(_first(rows))
        return counted


def _first(rows: Iterable[Any]) -> Iterator[int]:
    for row in rows:
        yield row[0]


def main(arguments: list[str] | None = None) -> int:
    """Run it, and print the counts. 0: nothing was lost, nothing came twice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for how long processes are killed; 10")
    parser.add_argument("--rate", type=int, default=2_000, help="records per second; 2000")
    parser.add_argument("--seed", type=int, default=None, help="of what is killed when")
    parser.add_argument("--keep", metavar="DIR", help="leave what was written in DIR")
    asked = parser.parse_args(arguments)
    where = programs()
    if where is None:
        parser.error("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    seed = random.SystemRandom().getrandbits(32) if asked.seed is None else asked.seed
    place = Path(asked.keep or tempfile.mkdtemp(prefix="soak-")).absolute()
    place.mkdir(exist_ok=not asked.keep)
    try:
        with server(where, durable=True) as database:
            soak = Soak(place, f"postgresql+psycopg://tests@/postgres?host={database}", asked.rate, seed)
            try:
                soak.run(asked.minutes * 60)
            finally:
                soak.sluiceway("cluster", "stop", check=False)
            return report(soak, asked.minutes, seed)
    finally:
        if not asked.keep:
            shutil.rmtree(place)


def report(soak: Soak, minutes: float, seed: int) -> int:
    """Print the table; 0: nothing was lost, nothing came twice."""
    files, table = soak.in_files(), soak.in_table()
    soak.problems += soak.left_over()
    if not files.same_as(table):
        soak.problems.append("files and table do not have the same numbers")
    rows = [
        ("minutes of kills", f"{minutes:g}"),
        ("workers killed", soak.worker_kills),
        ("job managers killed", soak.manager_kills),
        ("restarts of the job", soak.restarts),
        ("number of the last checkpoint", soak.checkpoints),
    ]
    if soak.recoveries:
        median, longest = statistics.median(soak.recoveries), max(soak.recoveries)
        rows.append(
            ("from a kill until two checkpoints were complete", f"{median:.1f} s; {longest:.1f} s at most")
        )
    for name, counted in (("files", files), ("PostgreSQL", table)):
        rows += [
            (f"records in {name}", counted.received),
            (f"lost in {name}", counted.lost),
            (f"duplicates in {name}", counted.duplicates),
            (f"out of order in {name}", counted.out_of_order),
        ]
    print("\n| | |\n|---|---|")
    for row in rows:
        print(f"| {row[0]} | {row[1]} |")
    for problem in soak.problems:
        print(f"problem: {problem}", file=sys.stderr)
    wrong = sum(c.lost + c.duplicates + c.out_of_order for c in (files, table))
    if wrong or soak.problems:
        print(f"again with: python -m benchmarks.soak --seed {seed}", file=sys.stderr)
    return 1 if wrong or soak.problems or not files.received else 0


if __name__ == "__main__":
    sys.exit(main())
