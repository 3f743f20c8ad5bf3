"""Copies of checkpoints on the disk of the process that has written them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

import sluiceway as sw
from sluiceway.checkpoint.restore import StateReader
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.config.settings import Settings
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.plugins import default_manager
from sluiceway.runtime.taskmanager.local_recovery import LocalCopies, LocalCopyRegistration, with_local_copies
from sluiceway.testing import InjectedError
from sluiceway.testing.conformance.checkpoint_storage import CheckpointStorageConformance

SETTINGS = Settings(checkpoints="anywhere", local_recovery_bytes=1000)


@pytest.fixture
def far(tmp_path: Path) -> CheckpointStorage:
    return default_manager().checkpoint_storage(str(tmp_path / "far"))


@pytest.fixture
def near(far: CheckpointStorage, tmp_path: Path) -> Iterator[CheckpointStorage]:
    storage = with_local_copies(far, SETTINGS)
    copies = LocalCopyRegistration(storage, SETTINGS, tmp_path)
    yield storage
    copies.close()
    assert not list(tmp_path.glob("sluiceway-copies-*"))


class TestWithCopies(CheckpointStorageConformance):
    @pytest.fixture(autouse=True)
    def _kept(self, tmp_path: Path) -> Iterator[None]:
        storage = default_manager().checkpoint_storage(str(tmp_path / "some where"))
        copies = LocalCopyRegistration(storage, Settings(local_recovery_bytes=1 << 30))
        yield
        copies.close()

    def make_storage(self) -> CheckpointStorage:
        return LocalCopies(default_manager().checkpoint_storage(str(self.tmp_path / "some where")))


def test_what_was_written_here_is_read_here(
    near: CheckpointStorage, far: CheckpointStorage, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert near.write("chk-1/a", [b"one", b" and two"]) == 11
    assert near.put_file("chk-1/b", str(file)) == 10
    far.delete(["chk-1/a", "chk-1/b"])
    same = pickle.loads(pickle.dumps(near))
    assert same.read("chk-1/a") == b"one and two"
    assert same.read("chk-1/b", 3, 4) == b"3456"
    same.fetch_file("chk-1/b", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == b"0123456789"
    near.delete(["chk-1/a"])
    with pytest.raises(CheckpointError, match="cannot read"):
        near.read("chk-1/a")


def test_where_nothing_is_kept_it_is_the_storage(far: CheckpointStorage) -> None:
    storage = with_local_copies(far, SETTINGS)
    storage.write("chk-1/a", [b"one"])
    assert storage.read("chk-1/a") == b"one"
    far.delete(["chk-1/a"])
    with pytest.raises(CheckpointError):
        storage.read("chk-1/a")
    assert with_local_copies(far, Settings()) is far


def test_what_was_not_used_for_the_longest_time_goes_first(
    near: CheckpointStorage, far: CheckpointStorage
) -> None:
    for name in "abc":
        near.write(name, [name.encode() * 400])
        near.read("a")
    far.delete(["a", "b", "c"])
    assert near.read("a") == b"a" * 400
    assert near.read("c") == b"c" * 400
    with pytest.raises(CheckpointError):
        near.read("b")


def test_what_is_larger_than_the_room_is_not_kept(near: CheckpointStorage, far: CheckpointStorage) -> None:
    near.write("a", [b"a" * 100])
    near.write("b", [b"b" * 1001])
    far.delete(["a", "b"])
    assert near.read("a") == b"a" * 100
    with pytest.raises(CheckpointError):
        near.read("b")


def test_a_copy_that_is_damaged_is_done_without(
    near: CheckpointStorage, far: CheckpointStorage, tmp_path: Path
) -> None:
    content = b"as it was written"
    near.write("chk-1/a", [content])
    (copy,) = tmp_path.glob("sluiceway-copies-*/*")
    copy.write_bytes(b"as it was not writ")
    reader = StateReader(near, "chk-1")
    assert reader.checked("a", 0, len(content), crc32(content)) == content
    assert not copy.exists()
    far.write("chk-1/a", [b"something else...."])
    with pytest.raises(CheckpointError, match="is damaged"):
        reader.checked("a", 0, len(content), crc32(content))


def test_a_copy_that_cannot_be_made_is_done_without(near: CheckpointStorage, tmp_path: Path) -> None:
    (place,) = tmp_path.glob("sluiceway-copies-*")
    shutil.rmtree(place)
    near.write("a", [b"one"])
    assert near.read("a") == b"one"


def test_a_file_that_could_not_be_written_there_is_not_here(near: CheckpointStorage) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one"
        raise InjectedError("no more")

    with pytest.raises(InjectedError):
        near.write("a", parts())
    with pytest.raises(CheckpointError):
        near.read("a")


def test_copies_stay_as_long_as_anybody_keeps_them(far: CheckpointStorage, tmp_path: Path) -> None:
    storage = with_local_copies(far, SETTINGS)
    first, second = (
        LocalCopyRegistration(storage, SETTINGS, tmp_path),
        LocalCopyRegistration(storage, SETTINGS, tmp_path),
    )
    storage.write("a", [b"one"])
    far.delete(["a"])
    first.close()
    first.close()
    assert storage.read("a") == b"one"
    second.close()
    with pytest.raises(CheckpointError):
        storage.read("a")


def test_it_needs_a_place_for_checkpoints() -> None:
    flow = sw.Pipeline("nowhere")
    flow.from_sequence(0, 1).for_each(lambda n: None)
    with pytest.raises(ConfigurationError, match=r"local-recovery \(.*\) keeps copies .*: name one, or leave"):
        flow.run(local_recovery="1mb")
    with pytest.raises(ConfigurationError, match=r"local_recovery='much' is not a size such as 512mb"):
        flow.run(local_recovery="much")


COUNT, KEYS = 12_000, 12


@pytest.mark.parametrize(
    ("workers", "backend"),
    [
        pytest.param(0, "rocksdb", marks=pytest.mark.slow),
        (2, "memory"),
        pytest.param(0, "memory", marks=pytest.mark.slow),
        pytest.param(2, "rocksdb", marks=pytest.mark.slow),
    ],
)
def test_a_job_begins_anew_with_copies(workers: int, backend: str, tmp_path: Path) -> None:
    """When it fails, it takes what the keyed step has saved out of the storage."""
    kept, mark = tmp_path / "kept", tmp_path / "mark"

    def check(value: int) -> int:
        if value % 50 == 0 and not mark.exists() and any(kept.glob("*/*/metadata.json")):
            files = [file for file in kept.rglob("*") if ".part-" not in file.name]  # which are being written
            taken = [file for file in files if file.parent.name == "shared" or file.match("3-*.state")]
            for file in taken:
                file.unlink(missing_ok=True)
            if taken:  # else that checkpoint has just been deleted
                mark.touch()
                raise InjectedError("gone")
        return value

    flow = sw.Pipeline("numbers", parallelism=2)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=5_000)).uid("numbers")
    pairs = numbers.map(check).key_by(lambda n: n % KEYS).map(lambda n: (n % KEYS, n))
    sums = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").collect()
    result = flow.run(
        checkpoints=kept,
        checkpoint_interval="50ms",
        local_recovery="10mb",
        restart="fixed-delay:3:10ms",
        workers=workers,
        state_backend=backend,
    )
    assert [type(failure.cause) for failure in result.failures] == [InjectedError]
    found: dict[int, int] = {}
    for key, total in sums:
        found[key] = max(total, found.get(key, 0))
    assert found == {key: sum(range(key, COUNT, KEYS)) for key in range(KEYS)}
