"""RocksDB databases on a full disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway.errors import StateError
from sluiceway_rocksdb import _database
from sluiceway_rocksdb._database import Database
from sluiceway_rocksdb._options import RocksDBOptions

SMALL = RocksDBOptions(write_buffer=256 << 10, block_cache=1 << 20)

# In a process of its own, as a write that does not return cannot be interrupted. Whether RocksDB stops writes
# before it sees the error is a matter of chance: in about every third database.
FILL = """
import os, shutil, sys
from sluiceway.errors import StateError
from sluiceway_rocksdb._database import Database
from sluiceway_rocksdb._options import RocksDBOptions

rows = [(os.urandom(16), os.urandom(200)) for _ in range(20_000)]
for i in range(12):
    path = f"{sys.argv[1]}/{i}"
    database = Database(path, RocksDBOptions(write_buffer=256 << 10, block_cache=1 << 20, background_jobs=1))
    try:
        for begin in range(0, len(rows), 100):
            database.write(rows[begin : begin + 100])
    except StateError as error:
        print(error, flush=True)
    database.close()
    shutil.rmtree(path)
"""


# A few rows at a time, with a checkpoint after each part: the flush of one of these finds the full disk.
CHECKPOINT = FILL.replace(
    "database.write(rows[begin : begin + 100])",
    "database.write(rows[begin : begin + 100]); place = f'{sys.argv[1]}/copy'; "
    "database.checkpoint(place); shutil.rmtree(place)",
).replace("path = f", "shutil.rmtree(sys.argv[1] + '/copy', True); path = f")


@pytest.mark.slow
def test_checkpoints_on_a_full_disk_fail_and_do_not_hang(small_disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECKPOINT, str(small_disk)], capture_output=True, text=True, timeout=PATIENT_S
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for line in lines:
        assert line.startswith(f"state backend 'rocksdb' cannot make a checkpoint of {small_disk}/")
        assert "No space left on device" in line


@pytest.mark.slow
def test_writes_to_a_full_disk_fail_and_do_not_hang(small_disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(small_disk)], capture_output=True, text=True, timeout=PATIENT_S
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for line in lines:
        assert line.startswith(f"state backend 'rocksdb' cannot write to {small_disk}/")
        assert "No space left on device" in line


GROWS = """
import os
import sluiceway as sw

class Keep(sw.KeyedProcessFunction):
    def open(self, ctx):
        self.kept = ctx.get_state(sw.ValueStateDescriptor("kept", bytes))

    def process_element(self, value, ctx):
        self.kept.update(os.urandom(200))
        return []

flow = sw.Pipeline("grows")
flow.from_sequence(1, 30_000).key_by(lambda n: n).process(Keep()).print()
"""


@pytest.mark.slow
def test_a_job_restarts_after_growing_pauses_until_the_disk_has_room(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "grows.py").write_text(GROWS)
    command = [sys.executable, "-m", "sluiceway", "run", "--state-backend", "rocksdb"]
    command += ["--checkpoints", str(tmp_path / "kept"), "--checkpoint-interval", "100ms", "grows.py"]
    environment = os.environ | {"SLUICEWAY_ROCKSDB_DIRECTORY": str(small_disk)}
    log = tmp_path / "log"
    with log.open("w") as written:
        job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=written, stderr=written)
    said = re.compile(r"WARNING .* has failed: (.*) restarts? in (\d+) ms")
    try:
        until(lambda: len(said.findall(log.read_text())) >= 2 or job.poll() is not None)
        (why, first), (restoring, second), *_ = said.findall(log.read_text())
        assert "No space left on device" in why
        assert "state backend 'rocksdb' cannot " in restoring
        assert int(second) > int(first)
        subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
        assert job.wait(PATIENT_S) == 0, log.read_text()
    finally:
        job.kill()
        job.wait()
    assert list(small_disk.iterdir()) == []


class Stalling:
    """RocksDB database that refuses some writes, as one does that has to flush first."""

    def __init__(self, real: Any, times: int) -> None:
        self.real = real
        self.times = times

    def write(self, batch: Any) -> None:
        if self.times:
            self.times -= 1
            raise Exception("Result incomplete: Write stall")
        self.real.write(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(str(tmp_path / "database"), SMALL)
    yield opened
    opened.close()


def test_a_stalled_write_is_repeated_whole(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_db", Stalling(database._db, 3))
    database.write([(b"a", b"1"), (b"b", b"2"), (b"c", None)])
    assert database.get_all([b"a", b"b", b"c"]) == [b"1", b"2", None]


def test_a_write_that_stalls_for_too_long_fails(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_database, "_STALL_S", 0.0)
    monkeypatch.setattr(database, "_db", Stalling(database._db, 1 << 30))
    with pytest.raises(StateError, match=r"RocksDB has admitted no write for 0 s.*Use a faster disk"):
        database.write([(b"a", b"1")])


@pytest.mark.parametrize(
    ("name", "number"),
    [("num-immutable-mem-table", 2), ("num-files-at-level0", 19), ("estimate-pending-compaction-bytes", 64 << 30)],
)
def test_a_checkpoint_does_not_flush_where_rocksdb_would_wait(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    real = database._db

    class Delayed:
        def property_value(self, asked: str) -> str | None:
            return str(number) if asked == f"rocksdb.{name}" else real.property_value(asked)

        def flush(self, wait: bool) -> None:
            raise AssertionError("it may wait for ever")

    monkeypatch.setattr(_database, "_STALL_S", 0.0)
    monkeypatch.setattr(database, "_db", Delayed())
    with pytest.raises(
        StateError, match=r"cannot make a checkpoint of .* has flushed nothing for 0 s.*Use a faster disk"
    ):
        database.checkpoint(str(tmp_path / "copy"))


def test_a_flush_that_fails_ends_the_checkpoint(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = database._db
    numbers = {"rocksdb.background-errors": 0}

    class Failing:
        def property_value(self, asked: str) -> str | None:
            return str(numbers[asked]) if asked in numbers else real.property_value(asked)

        def flush(self, wait: bool) -> None:
            assert not wait
            numbers["rocksdb.num-immutable-mem-table"] = 1
            monkeypatch.setattr(
                _database.time, "sleep", lambda _: numbers.update({"rocksdb.background-errors": 1})
            )

    monkeypatch.setattr(database, "_db", Failing())
    with pytest.raises(StateError, match=r"cannot make a checkpoint of .*: a flush or compaction failed: "):
        database.checkpoint(str(tmp_path / "copy"))
    # RocksDB counts failures for as long as a database is open: those of before end a wait soon, not at once.
    monkeypatch.setattr(_database, "_AFTER_ERROR_S", 0.0)
    with pytest.raises(StateError, match=r"cannot make a checkpoint of .*: a flush or compaction failed: "):
        database.checkpoint(str(tmp_path / "copy"))


def test_real_stalls_lose_no_row(tmp_path: Path) -> None:
    options = RocksDBOptions(write_buffer=64 << 10, block_cache=1 << 20, background_jobs=1, compression="zstd")
    database = Database(str(tmp_path / "database"), options)
    rows = [(b"k%06d" % i, i.to_bytes(4, "big") * 50) for i in range(30_000)]
    database.write(rows)
    assert list(database.rows(b"k")) == rows
    database.delete_range(rows[0][0], rows[20_000][0])
    assert list(database.rows(b"k")) == rows[20_000:]
    database.close()
