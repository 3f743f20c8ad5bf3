"""The filesystem state backend."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import sluiceway_filestate
import sluiceway_filestate._spool
from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend, ValueStateDescriptor
from sluiceway.testing.conformance.state_backend import StateBackendConformance
from sluiceway_filestate._backend import FilesystemStateBackend
from sluiceway_memory._backend import MemoryStateBackend

VALUE = ValueStateDescriptor("value")


class TestFilesystem(StateBackendConformance):
    examples = 10
    big_value_bytes = 32 << 20

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = str(tmp_path)

    def make_backend(self) -> StateBackend:
        return FilesystemStateBackend(self.directory)


class TestFilesystemByteByByte(TestFilesystem):
    examples = 3
    big_value_bytes = 4 << 20

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sluiceway_filestate._spool, "_ENOUGH", 1)


def keyed(backend: StateBackend) -> KeyedStateBackend:
    return backend.create_keyed(BackendContext("uid-7", 0, KeyGroupRange(0, 32), 32))


def test_the_hook_offers_it() -> None:
    (offer,) = sluiceway_filestate.sluiceway_state_backends()
    assert offer.name == "filesystem"
    assert offer.load() is FilesystemStateBackend


@pytest.mark.parametrize("kind", [bytes, bytearray])  # in blocks; in rows
def test_a_snapshot_takes_little_memory(tmp_path: Path, kind: type) -> None:
    """Against that of the memory backend, which has all of it in memory, encoded."""
    peaks = []
    for backend in (FilesystemStateBackend(str(tmp_path)), MemoryStateBackend()):
        state = keyed(backend)
        state.table(VALUE).entries().update({i: kind(1_000) for i in range(60_000)})
        snapshot = state.snapshot()
        tracemalloc.start()
        try:
            assert sum(len(snapshot.groups[group]) for group in snapshot.groups) > 60_000_000
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        snapshot.release()
        state.close()
    mine, memory = peaks
    assert memory > 60_000_000
    assert mine < memory / 3


def test_its_files_have_no_names_and_go_with_the_snapshot(tmp_path: Path) -> None:
    state = keyed(FilesystemStateBackend(str(tmp_path / "made" / "on demand")))
    state.table(VALUE).entries()["a"] = 1
    before = len(os.listdir("/proc/self/fd"))
    snapshot = state.snapshot()
    assert len(snapshot.groups) == 1
    assert list((tmp_path / "made" / "on demand").iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before + 1
    copy = pickle.loads(pickle.dumps(snapshot))
    snapshot.release()
    snapshot.release()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(StateError, match="'uid-7' was released"):
        dict(snapshot.groups)
    again = keyed(FilesystemStateBackend(str(tmp_path)))
    again.restore([copy])
    assert dict(again.table(VALUE).entries()) == {"a": 1}


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUICEWAY_FILESYSTEM_DIRECTORY", str(tmp_path / "file"))
    state = keyed(FilesystemStateBackend())
    state.table(VALUE).entries()["a"] = 1
    snapshot = state.snapshot()
    with pytest.raises(StateError, match=r"cannot write.*/file: .*Set SLUICEWAY_FILESYSTEM_DIRECTORY"):
        dict(snapshot.groups)
    snapshot.release()
    assert state.table(VALUE).entries()["a"] == 1


FULL = """
import resource, signal, sys
from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, ValueStateDescriptor
from sluiceway_filestate._backend import FilesystemStateBackend

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
keyed = FilesystemStateBackend(sys.argv[1]).create_keyed(BackendContext("uid-7", 0, KeyGroupRange(0, 8), 8))
entries = keyed.table(ValueStateDescriptor("value")).entries()
entries.update({i: b"x" * 100_000 for i in range(100)})
snapshot = keyed.snapshot()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    dict(snapshot.groups)
except StateError as error:
    print(error)
snapshot.release()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
entries[0] = b"y"
print(sum(map(len, dict(keyed.snapshot().groups).values())) > 9_900_000)
"""


def test_a_snapshot_on_a_full_disk_fails_and_loses_nothing(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert f"cannot write a snapshot to the directory {tmp_path}: File too large" in first
    assert second == "True"
