"""Files that are damaged: an error that names the file, whatever is in it, and nothing that ends a process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from zlib import crc32

import pytest

from sluiceway.checkpoint import METADATA, load_metadata
from sluiceway.checkpoint.metadata import FORMAT, decode_metadata
from sluiceway.errors import CheckpointError, ConnectorError
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster import home
from sluiceway.runtime.cluster.client import ClusterClient, cluster_file
from sluiceway.runtime.cluster.epoch_fence import EpochFence, hold
from sluiceway.runtime.cluster.job_store import JobStore, StoredJob
from sluiceway.runtime.microbatch import run_directory as runs

DAMAGED = {
    "nothing": b"",
    "zeros": bytes(4096),
    "no UTF-8": b'{"format": "\xff\xfe"}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep in an unknown field": b'{"x":' + b"[" * 100_000,
    "null": b"null",
    "a list": b"[1]",
    "other types": b'{"format": 5, "version": [], "directory": 1, "secret": 2, "pid": "x", "vertices": 3}',
    "a huge number": b'{"version": 1' + b"0" * 5000 + b"}",
    "cut": b'{"format": "sluice',
}
each_damage = pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)


@each_damage
def test_metadata_of_a_checkpoint(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "chk").mkdir()
    (tmp_path / "chk" / METADATA).write_bytes(data)
    storage = default_manager().services().checkpoint_storage(str(tmp_path))
    with pytest.raises(CheckpointError, match="chk/"):
        load_metadata(storage, "chk")


@each_damage
def test_content_of_metadata_with_a_good_checksum(data: bytes) -> None:
    if data == DAMAGED["no UTF-8"] or data.startswith(b"{"):
        data = data.replace(b"{", b'{"job_name": "j", ', 1)
    head = json.dumps({"format": FORMAT, "version": 1, "crc32": crc32(data)}).encode()
    with pytest.raises(CheckpointError, match=r"^the file is "):
        decode_metadata(head[:-1] + b', "content": ' + data + b"}", "the file")


@each_damage
def test_a_job_in_the_job_store_keeps_no_other_from_being_read(tmp_path: Path, data: bytes) -> None:
    with JobStore(tmp_path / "store") as store:
        for number, job in enumerate(("good-1", "bad-2", "good-3")):
            store.add(
                StoredJob(job=job, name=job, number=number, submitted_ms=0, path=[], needs_slots=1), b"program"
            )
        (bad,) = (tmp_path / "store").glob("job-bad*/*.json")
        bad.write_bytes(data)
        loaded = store.load()
    assert [job.job for job in loaded.jobs] == ["good-1", "good-3"]
    (problem,) = loaded.problems
    assert str(bad) in problem
    assert bad.exists()


@each_damage
def test_the_description_of_a_run_in_micro_batches(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / runs.RUN).write_bytes(data)
    storage = default_manager().services().checkpoint_storage(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"run/.* (does not describe a run: |is of layout)"):
        runs._read(storage, "run")


@each_damage
def test_the_file_that_says_where_the_cluster_is(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    cluster_file().write_bytes(data)
    with pytest.raises(ConnectorError, match=r"cluster\.json is damaged, and without it"):
        ClusterClient()


def test_a_secret_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    cluster_file().write_text('{"directory": "/", "secret": "xyz", "pid": 1, "log": ""}')
    with pytest.raises(ConnectorError, match="is damaged"):
        ClusterClient()


@each_damage
def test_the_number_of_a_job_manager_never_goes_back(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path))
    first = home.next_epoch()
    assert (first, home.next_epoch()) == (1, 2)
    (tmp_path / "epoch").write_bytes(data)
    assert home.next_epoch() > 1000


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"9" * 5000, b"-1", b"x y"])
def test_the_lock_file_of_a_worker(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "other-worker-1.lock"
    with hold(str(file)):
        file.write_bytes(data)
        fence = EpochFence(tmp_path)
        assert fence.alive() == [0]
        fence.end([0])
    assert fence.alive() == []
    assert not os.listdir(tmp_path)
