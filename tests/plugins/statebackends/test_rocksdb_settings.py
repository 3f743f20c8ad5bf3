"""The settings of the RocksDB state backend."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigurationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedStateBackend, ValueStateDescriptor
from sluiceway_rocksdb import _local_directories, sluiceway_state_backends
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions

COUNT = ValueStateDescriptor("count", int)


def test_settings_come_from_the_environment() -> None:
    found = RocksDBOptions.from_environment(
        {
            "SLUICEWAY_ROCKSDB_DIRECTORY": "/fast",
            "SLUICEWAY_ROCKSDB_CACHE": "1gb",
            "SLUICEWAY_ROCKSDB_BLOCK_CACHE": "5 MB",
            "SLUICEWAY_ROCKSDB_WRITE_BUFFER": "4096",
            "SLUICEWAY_ROCKSDB_COMPRESSION": "zstd",
            "SLUICEWAY_ROCKSDB_BACKGROUND_JOBS": "4",
            "SLUICEWAY_ROCKSDB_CACHE_ENTRIES": "1000",
            "SLUICEWAY_ROCKSDB_BLOOM_BITS": "0",
            "SLUICEWAY_ROCKSDB_CHANGES": "7",
            "SLUICEWAY_ROCKSDB_COLUMNS": "8mb",
        }
    )
    assert found == RocksDBOptions("/fast", 1 << 30, 5 << 20, 4096, "zstd", 4, 1000, 0, 7, 8 << 20)
    assert replace(RocksDBOptions.from_environment({}), directory="") == RocksDBOptions()
    assert Path(RocksDBOptions.from_environment({}).directory).is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CACHE", "much"),
        ("CACHE", "0"),
        ("BLOCK_CACHE", "-1"),
        ("COMPRESSION", "zip"),
        ("BACKGROUND_JOBS", "0"),
        ("CACHE_ENTRIES", "0"),
        ("BLOOM_BITS", "few"),
        ("CHANGES", "-1"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"SLUICEWAY_ROCKSDB_{name}='{value}' is not"):
        RocksDBOptions.from_environment({f"SLUICEWAY_ROCKSDB_{name}": value})


def keyed(options: RocksDBOptions) -> KeyedStateBackend:
    return RocksDBStateBackend(options).create_keyed(BackendContext("uid-7", 3, KeyGroupRange(0, 8), 8))


def test_there_may_be_a_number_of_objects_in_memory(tmp_path: Path) -> None:
    for count, left in ((10_000, 1_000), (0, 20)):  # 20 are fewer than there always may be
        backend = keyed(RocksDBOptions(str(tmp_path), cache=1, cache_entries=count, bloom_bits=0))
        entries: Any = backend.table(COUNT).entries()
        entries.update({i: i for i in range(left)})
        entries.update({i: i for i in range(left)})
        assert len(entries.young) == (1_000 if count else 20)
        assert dict(entries) == {i: i for i in range(left)}
        backend.close()


RSS = """
import os, re, sys
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, ValueStateDescriptor
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions

def rss(what):
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

sizes = {"cache": 16 << 20, "block_cache": 8 << 20, "write_buffer": 4 << 20}
options = RocksDBOptions(sys.argv[1], compression="none", **sizes)
keyed = RocksDBStateBackend(options).create_keyed(BackendContext("uid-7", 3, KeyGroupRange(0, 8), 8))
table = keyed.table(ValueStateDescriptor("value", bytes))
before = rss("VmRSS")
count = 1_000_000
for begin in range(0, count, 1_000):
    batch = [f"key{i}" for i in range(begin, begin + 1_000)]
    table.working(batch).update((key, os.urandom(500)) for key in batch)
for begin in range(0, count, 50_000):  # and again, with checkpoints between
    batch = [f"key{i}" for i in range(begin, begin + 1_000)]
    entries = table.working(batch)
    assert all(len(entries[key]) == 500 for key in batch)
    entries.update((key, os.urandom(500)) for key in batch)
    snapshot = keyed.snapshot()
    size = sum(file.size for file in snapshot.native.files) >> 20
    snapshot.release()
keyed.close()
print(size, rss("VmHWM") - before)
"""


@pytest.mark.slow
def test_state_takes_no_more_memory_than_was_configured(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", RSS, tmp_path], capture_output=True, text=True, check=True)
    on_disk, in_memory = map(int, run.stdout.split())
    # 16 for objects, 8 for blocks, three times 4 to be written; beside these, indexes of files and the allocator.
    assert on_disk > 480
    assert in_memory < 120


@pytest.mark.parametrize("compression", ["lz4", "zstd", "snappy", "none"])
def test_every_compression_is_there(tmp_path: Path, compression: str) -> None:
    backend = keyed(RocksDBOptions(str(tmp_path), compression=compression, cache=1))
    backend.table(COUNT).entries().update({i: i for i in range(1000)})
    snapshot = backend.snapshot()
    again = keyed(RocksDBOptions(str(tmp_path)))
    again.restore([snapshot])
    assert dict(again.table(COUNT).entries()) == {i: i for i in range(1000)}
    backend.close()
    again.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    backend = keyed(RocksDBOptions(str(tmp_path / "file/sub")))
    backend.table(COUNT).entries()["a"] = 1
    with pytest.raises(StateError, match=r"'rocksdb' cannot use the directory .*file/sub: Not a directory"):
        dict(backend.snapshot().groups)
    backend.close()


def test_a_directory_of_a_process_that_begins_is_not_taken_for_one_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step of making it, another process may look for what is left."""
    swept = []

    def sweeping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made = real(*arguments, **named)
            swept.append(name)
            monkeypatch.undo()  # the sweep makes use of these, too
            _local_directories._sweep(str(tmp_path))
            patch()
            return made

        return call

    def patch() -> None:
        for module, name in ((tempfile, "mkdtemp"), (os, "open"), (fcntl, "flock"), (os, "rename")):
            if name not in swept:
                monkeypatch.setattr(module, name, sweeping(name, getattr(module, name)))

    patch()
    place = _local_directories.new_place(str(tmp_path), "database")
    monkeypatch.undo()
    assert swept == ["mkdtemp", "open", "flock", "rename"]
    os.mkdir(place.path)
    _local_directories._sweep(str(tmp_path))
    assert os.path.isdir(place.path)
    place.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_hook_offers_it() -> None:
    [offer] = sluiceway_state_backends()
    assert (offer.name, offer.requires, offer.extra) == ("rocksdb", ("rocksdict",), "rocksdb")
    assert offer.load() is RocksDBStateBackend


def test_what_a_process_has_left_that_was_killed_while_it_began_goes(tmp_path: Path) -> None:
    without_lock, unlocked, locked, other = (
        tmp_path / name
        for name in (".new-sluiceway-rocksdb-a", ".new-sluiceway-rocksdb-b", ".new-sluiceway-rocksdb-c", ".new-d")
    )
    for place in (without_lock, unlocked, locked, other):
        place.mkdir()
    for place in (unlocked, locked):
        (place / "owner.lock").touch()
    with (locked / "owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _local_directories._sweep(str(tmp_path))
    assert set(tmp_path.iterdir()) == {locked, other}
