"""The settings of the RocksDB state backend."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigurationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedStateBackend, ValueStateDescriptor
from sluiceway_rocksdb import _places, sluiceway_state_backends
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
        }
    )
    assert found == RocksDBOptions("/fast", 1 << 30, 5 << 20, 4096, "zstd", 4)
    assert replace(RocksDBOptions.from_environment({}), directory="") == RocksDBOptions()
    assert Path(RocksDBOptions.from_environment({}).directory).is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [("CACHE", "much"), ("CACHE", "0"), ("BLOCK_CACHE", "-1"), ("COMPRESSION", "zip"), ("BACKGROUND_JOBS", "0")],
)
def test_a_setting_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"SLUICEWAY_ROCKSDB_{name}='{value}' is not"):
        RocksDBOptions.from_environment({f"SLUICEWAY_ROCKSDB_{name}": value})


def keyed(options: RocksDBOptions) -> KeyedStateBackend:
    return RocksDBStateBackend(options).create_keyed(BackendContext("uid-7", 3, KeyGroupRange(0, 8), 8))


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
            _places._sweep(str(tmp_path))
            patch()
            return made

        return call

    def patch() -> None:
        for module, name in ((tempfile, "mkdtemp"), (os, "open"), (fcntl, "flock"), (os, "rename")):
            if name not in swept:
                monkeypatch.setattr(module, name, sweeping(name, getattr(module, name)))

    patch()
    place = _places.new_place(str(tmp_path), "database")
    monkeypatch.undo()
    assert swept == ["mkdtemp", "open", "flock", "rename"]
    os.mkdir(place.path)
    _places._sweep(str(tmp_path))
    assert os.path.isdir(place.path)
    place.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_hook_offers_it() -> None:
    [offer] = sluiceway_state_backends()
    assert (offer.name, offer.requires, offer.extra) == ("rocksdb", ("rocksdict",), "rocksdb")
    assert offer.load() is RocksDBStateBackend
