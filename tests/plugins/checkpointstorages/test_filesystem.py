"""The checkpoint storage on file systems: conformance, broken disks, processes that die."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, ConfigurationError, MissingExtraError
from sluiceway.plugins import default_manager
from sluiceway.testing.conformance.checkpoint_storage import CheckpointStorageConformance
from sluiceway_filesystem import sluiceway_checkpoint_storages
from sluiceway_filesystem._local import LocalStorage
from sluiceway_filesystem._remote import RemoteStorage
from sluiceway_filesystem._storage import open_storage


class TestLocal(CheckpointStorageConformance):
    def make_storage(self) -> CheckpointStorage:
        return open_storage(str(self.tmp_path / "some where"))


class TestLocalUrl(CheckpointStorageConformance):
    def make_storage(self) -> CheckpointStorage:
        return open_storage(f"file://{self.tmp_path}/there")


class TestMemory(CheckpointStorageConformance):
    @pytest.fixture(autouse=True)
    def _forget(self) -> Iterator[None]:
        yield
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]

    def make_storage(self) -> CheckpointStorage:
        return open_storage("memory://conformance/of it")


class Upload(AbstractBufferedFile):
    """Parts are held until the last one makes a file of them."""

    def _initiate_upload(self) -> None:
        self.parts = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts += self.buffer.getvalue()
        if final:
            self.fs.pipe_file(self.path, self.parts)
        return True

    def discard(self) -> None:
        self.parts = b""


class ObjectStore(MemoryFileSystem):
    """Like an object store: no directories, files are there when they are closed, no rename."""

    protocol = ("gs",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Upload(self, path, mode, **options) if mode == "wb" else super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and path in self.store:
            raise FileExistsError(path)
        self.store[path] = MemoryFile(self, path, value)

    def mv(self, *arguments: Any, **options: Any) -> None:
        raise AssertionError("a rename copies the file")

    makedirs = mv


class Hadoop(MemoryFileSystem):
    """Like HDFS: what does not exist cannot be deleted, and a target is deleted before a file is moved there."""

    protocol = ("hadoop",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    dying = False

    def rm_file(self, path: str) -> None:
        if not self.exists(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rm_file(path)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self.store.pop(self._strip_protocol(path2), None)
        if self.dying and ".part-" in path1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().mv(path1, path2, **options)


@pytest.fixture
def hadoop() -> Iterator[None]:
    fsspec.register_implementation("hadoop", Hadoop, clobber=True)
    yield
    Hadoop.dying = False
    Hadoop.store.clear()
    Hadoop.pseudo_dirs[:] = [""]


@pytest.mark.usefixtures("hadoop")
class TestHadoop(CheckpointStorageConformance):
    def make_storage(self) -> CheckpointStorage:
        return open_storage("hadoop://kept/checkpoints")

    def test_a_file_that_is_not_replaced_on_the_way_stays(self) -> None:
        self.storage.write("d/a", (b"old",))
        Hadoop.dying = True
        with pytest.raises(
            CheckpointError, match="cannot write hadoop://kept/checkpoints/d/a: Input/output error"
        ):
            self.storage.write("d/a", (b"new",))
        assert self.names() == ["d/a"]
        assert self.storage.read("d/a") == b"old"
        Hadoop.dying = False
        self.storage.write("d/a", (b"new",))
        self.storage.delete(["d/a"])
        assert Hadoop.store == {}

    def test_a_file_that_was_not_replaced_can_be_deleted(self) -> None:
        self.storage.write("d/a", (b"old",))
        Hadoop.dying = True
        with pytest.raises(CheckpointError):
            self.storage.write("d/a", (b"new",))
        self.storage.delete(["d/a"])
        assert self.names() == []


@pytest.fixture
def object_store() -> Iterator[None]:
    fsspec.register_implementation("gs", ObjectStore, clobber=True)
    yield
    ObjectStore.store.clear()
    ObjectStore.clear_instance_cache()


@pytest.mark.usefixtures("object_store")
class TestObjectStore(CheckpointStorageConformance):
    def make_storage(self) -> CheckpointStorage:
        return open_storage("gs://bucket/checkpoints")


# -- choosing it ----------------------------------------------------------------------------------------------


def test_the_hook_offers_it() -> None:
    [offer] = sluiceway_checkpoint_storages()
    assert offer.name == "filesystem"
    assert offer.load() is open_storage


def test_a_path_and_urls_that_nobody_else_takes_go_to_it(tmp_path: Path) -> None:
    services = default_manager().services()
    assert isinstance(services.checkpoint_storage(str(tmp_path)), LocalStorage)
    assert isinstance(services.checkpoint_storage("memory://x"), RemoteStorage)
    assert services.checkpoint_storage(f"file://{tmp_path}").location == str(tmp_path)


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere")
    assert open_storage("there").location == str(tmp_path / "there")
    assert open_storage("~/there").location == "/somewhere/there"


@pytest.mark.parametrize("location", ["", "a\0b", "nosuchscheme://x"])
def test_what_is_no_place_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError, match="checkpoints"):
        open_storage(location)


# -- a disk that does not play along ---------------------------------------------------------------------------


def test_local_files_are_shared_and_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    storage = LocalStorage(str(tmp_path / "there"))
    storage.put_file("shared/a", str(source))
    storage.fetch_file("shared/a", str(tmp_path / "target"))
    assert source.stat().st_ino == (tmp_path / "there/shared/a").stat().st_ino
    assert source.stat().st_ino == (tmp_path / "target").stat().st_ino


def test_between_two_disks_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", link)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    storage = LocalStorage(str(tmp_path / "there"))
    assert storage.put_file("shared/a", str(source)) == 3_000_000
    storage.fetch_file("shared/a", str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert [file.name for file in storage.files()] == ["shared/a"]


def test_one_alone_creates_a_file(tmp_path: Path) -> None:
    count = 8
    for attempt in range(20):
        together = threading.Barrier(count)

        def create(number: int, together: threading.Barrier = together, name: str = f"d/{attempt}") -> bool:
            storage = LocalStorage(str(tmp_path))
            together.wait()
            return storage.create(name, [b"%d" % number] * 1000)

        with ThreadPoolExecutor(count) as pool:
            created = list(pool.map(create, range(count)))
        winner = created.index(True)
        assert created.count(True) == 1
        assert LocalStorage(str(tmp_path)).read(f"d/{attempt}") == b"%d" % winner * 1000
    assert len(list(tmp_path.rglob("d/*"))) == 20


def test_files_are_created_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    storage = LocalStorage(str(tmp_path))
    assert storage.create("d/a", [b"first"])
    assert not storage.create("d/a", [b"second"])
    assert storage.read("d/a") == b"first"
    assert [file.name for file in storage.files()] == ["d/a"]


def test_a_disk_that_cannot_be_written_is_no_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"cannot write .*d/a: Input/output error"):
        storage.create("d/a", [b"first"])
    assert list(storage.files()) == []


def test_empty_directories_go(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "there"))
    storage.write("run/chk-1/a", (b"x",))
    storage.write("run/chk-2/a", (b"x",))
    storage.delete(["run/chk-1/a"])
    assert [p.name for p in (tmp_path / "there/run").iterdir()] == ["chk-2"]
    storage.delete(["run/chk-2/a"])
    assert list((tmp_path / "there").iterdir()) == []


def test_a_directory_that_is_deleted_leaves_no_empty_ones_where_they_stay() -> None:
    storage = open_storage("memory://place")
    storage.write("run/chk-1/a", (b"x",))
    storage.write("run/chk-2/a", (b"x",))
    storage.delete_directory("run/chk-1")
    try:
        assert fsspec.filesystem("memory").ls("/place/run", detail=False) == ["/place/run/chk-2"]
    finally:
        fsspec.filesystem("memory").rm("/place", recursive=True)


FULL_DISK = """
import resource, sys
from sluiceway.errors import CheckpointError
from sluiceway_filesystem._local import LocalStorage
storage = LocalStorage(sys.argv[1])
storage.write("whole", (b"x" * 1000,))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    storage.write("run/chk-1/big", (b"x" * 50_000 for _ in range(4)))
except CheckpointError as error:
    print(error)
print(sorted(file.name for file in storage.files()))
"""


def test_a_disk_that_is_full_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"cannot write {tmp_path}/run/chk-1/big: File too large",
        "['whole']",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "whole"]


@pytest.mark.parametrize("step", ["mkdir", "rename", "utime"])
def test_failed_writes_leave_no_empty_directories(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path / "there"))
    storage.write("run/chk-1/a", (b"x",))
    (tmp_path / "local").write_bytes(b"x")

    def fails(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # Syncing begins when the first of two directories is made, and renaming when the file is written.
    monkeypatch.setattr(os, {"mkdir": "fsync", "rename": "replace", "utime": "utime"}[step], fails)
    writes: dict[str, Callable[[str], object]] = {
        "mkdir": lambda name: storage.write(name, (b"x",)),
        "rename": lambda name: storage.write(name, (b"x",)),
        "utime": lambda name: storage.put_file(name, str(tmp_path / "local")),
    }
    with pytest.raises(CheckpointError, match=r"cannot write .*chk-2/b/c: No space left on device"):
        writes[step]("run/chk-2/b/c")
    assert [path.name for path in (tmp_path / "there/run").iterdir()] == ["chk-1"]
    assert storage.read("run/chk-1/a") == b"x"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(CheckpointError, match=rf"cannot write {tmp_path}/run/chk-1/a: Not a directory"):
        storage.write("run/chk-1/a", (b"x",))
    with pytest.raises(CheckpointError, match=rf"cannot read {tmp_path}/run/chk-1/a: Not a directory"):
        storage.read("run/chk-1/a")


KILLED = """
import os, signal, sys
from sluiceway_filesystem._local import LocalStorage
def parts():
    yield b"x" * 1_000_000
    os.kill(os.getpid(), signal.SIGKILL)
step = sys.argv[2]
if step != "parts":
    import sluiceway_filesystem._local as module
    name, of = step.split()
    owner = os if of == "os" else module
    real = getattr(owner, name)
    def dies(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dies)
LocalStorage(sys.argv[1]).write("run/chk-1/metadata.json", parts() if step == "parts" else (b"new",))
"""


@pytest.mark.parametrize("step", ["parts", "fsync os", "replace os"])
def test_a_process_that_dies_on_the_way_leaves_the_old_file(tmp_path: Path, step: str) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("run/chk-1/metadata.json", (b"old",))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), step], capture_output=True)
    assert done.returncode == -9
    assert storage.read("run/chk-1/metadata.json") == b"old"
    left = [file.name for file in storage.files() if file.name != "run/chk-1/metadata.json"]
    assert all(".part-" in name for name in left)
    assert left, "a listing shows what was left, so that it can be collected"


class Broken(MemoryFileSystem):
    """Fails as it is told."""

    protocol = ("broken",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing = ""

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if self.failing == "mv":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().mv(path1, path2, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        if self.failing == "ls" and path.endswith("chk-1"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        found: list[Any] = super().ls(path, detail=detail, **options)
        return found

    def cat_file(self, path: str, **options: Any) -> bytes:
        if self.failing == "cat":
            raise ConnectionResetError("reset by the store")
        return super().cat_file(path, **options)


def test_errors_of_a_remote_filesystem_name_the_file() -> None:
    fsspec.register_implementation("broken", Broken, clobber=True)
    storage = open_storage("broken://place")
    storage.write("a", (b"old",))
    storage.write("run/chk-1/b", (b"x",))
    try:
        Broken.failing = "mv"
        with pytest.raises(CheckpointError, match="cannot write broken://place/a: No space left on device"):
            storage.write("a", (b"new",))
        assert storage.read("a") == b"old"
        assert sorted(file.name for file in storage.files()) == ["a", "run/chk-1/b"]
        Broken.failing = "ls"
        with pytest.raises(CheckpointError, match="cannot list broken://place/run: Permission denied"):
            list(storage.files("run"))
        Broken.failing = "cat"
        with pytest.raises(CheckpointError, match="cannot read broken://place/a: reset by the store"):
            storage.read("a")
    finally:
        Broken.failing = ""
        Broken.store.clear()


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``unknown("s3", "s3fs")``: have fsspec look for a filesystem anew, and not find these modules."""

    def forget(scheme: str, *modules: str) -> None:
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)

    return forget


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_what_s3_needs_is_named(scheme: str, unknown: Callable[..., None]) -> None:
    unknown(scheme, "s3fs")
    with pytest.raises(MissingExtraError, match=r"need s3fs: pip install .*\[s3\]."):
        open_storage(f"{scheme}://bucket/kept")


def test_what_hdfs_needs_is_named(unknown: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    unknown("hdfs")
    for name in ("ARROW_LIBHDFS_DIR", "JAVA_HOME", "HADOOP_HOME"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(CheckpointError, match=r"cannot reach hdfs://127\.0\.0\.1:1/kept: .*(hdfs|jvm)"):
        open_storage("hdfs://127.0.0.1:1/kept")
    unknown("hdfs", "pyarrow", "pyarrow.fs")
    with pytest.raises(MissingExtraError, match=r"need pyarrow: pip install .*\[hdfs\]."):
        open_storage("hdfs://127.0.0.1:1/kept")


def test_a_filesystem_that_nobody_brings_is_told_of_in_fsspec_s_words(unknown: Callable[..., None]) -> None:
    unknown("oci", "ocifs")
    with pytest.raises(ConfigurationError, match=r"cannot be kept in 'oci://bucket/kept': .*ocifs"):
        open_storage("oci://bucket/kept")


def test_the_limit_of_the_tests_own_process_is_untouched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
