"""Checkpoints in S3: the conformance suite, and jobs that are interrupted, against a server on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from patience import PATIENT_S
from tests.core.table.shared_blocks_job import begun, ended

import sluiceway as sw
from sluiceway.checkpoint import CheckpointDirectory, find_checkpoints
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import SystemClock
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import CheckpointError
from sluiceway.plugins import default_manager
from sluiceway.testing import KeySequence, NumberFiles
from sluiceway.testing.conformance.checkpoint_storage import CheckpointStorageConformance
from sluiceway_filesystem._storage import open_storage

# Looked for rather than imported: every run imports this module, and few run its tests; the import takes a second.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("s3fs") is None, reason="the extra s3 is not installed"),
    pytest.mark.skipif(find_spec("moto") is None, reason="moto[server] is not installed"),
]

COUNT, KEYS = 30_000, 12


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that speaks S3, in a process of its own."""
    s3fs = pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    pytest.importorskip("moto", reason="moto[server] is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENT_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=PATIENT_S).close()
                break
            except OSError:
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < until
        # It makes threads on first use, which are meant to stay.
        s3fs.S3FileSystem(endpoint_url=url, key="somebody", secret="secret", skip_instance_cache=True).ls("")
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, and the environment in which this process and workers find it."""
    from s3fs import S3FileSystem

    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    S3FileSystem.clear_instance_cache()
    name = f"bucket-{uuid4().hex}"
    S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    S3FileSystem.clear_instance_cache()


class TestS3(CheckpointStorageConformance):
    big_bytes = 12 << 20  # several parts of an upload

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: str) -> None:
        self.bucket = bucket

    def make_storage(self) -> CheckpointStorage:
        return open_storage(f"{self.bucket}/some/where")


class Ends(Exception):
    """The first run is over."""


def newest(place: str) -> int:
    """The number of the newest checkpoint."""
    found = (directory.rpartition("chk-")[2] for directory in find_checkpoints(open_storage(place)))
    return max(map(int, found), default=0)


def flow_of(out: Path, kept: str | None = None) -> tuple[sw.Pipeline, NumberFiles]:
    def check(value: int) -> int:
        if kept is not None and value % 1_000 == 0 and newest(kept) > 2:
            raise Ends
        return value

    flow = sw.Pipeline("numbers", parallelism=2)
    sink = NumberFiles(out)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=None if kept is None else 3_000))
    numbers.uid("numbers").map(check).key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink)
    return flow, sink


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_goes_on_from_checkpoints_in_s3(workers: int, bucket: str, tmp_path: Path) -> None:
    kept = f"{bucket}/kept"
    options: dict[str, Any] = {"state_backend": "rocksdb", "workers": workers}
    flow, _ = flow_of(tmp_path / "out", kept)
    with pytest.raises(Ends):
        flow.run(checkpoints=kept, checkpoint_interval="50ms", restart="none", **options)
    place = CheckpointDirectory(open_storage(kept))
    collected = place.collect(SystemClock().now_ms() + 60_000, 0)
    again, sink = flow_of(tmp_path / "out")
    again.run(from_checkpoint=kept, checkpoint_interval="1h", restart="none", **options)
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    assert all("chk-" in file.name or "/shared/" in file.name for file in collected.files)
    assert default_manager().checkpoint_storage(kept).location == kept


def test_a_job_in_columns_goes_on_from_shared_files_in_s3(bucket: str, tmp_path: Path) -> None:
    kept = f"{bucket}/kept"
    begun(tmp_path / "out", kept, state_backend="memory", parallelism=2)
    ended(tmp_path / "out", kept, state_backend="filesystem", parallelism=3)


def test_a_bucket_that_is_not_there_is_told_of(bucket: str) -> None:
    storage = open_storage(f"{bucket}-not/kept")
    with pytest.raises(CheckpointError, match=r"cannot write s3://bucket-.*-not/kept/a/b"):
        storage.write("a/b", (b"x",))
