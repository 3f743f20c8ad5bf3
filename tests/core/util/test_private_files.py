"""Files, directories and sockets that nobody else may read, whatever the umask says."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.client import ClusterClient, cluster_file
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_start import start_cluster
from sluiceway.runtime.cluster.private_places import check_private
from sluiceway.runtime.jobmanager.checkpoint_places import check_savepoint_place
from sluiceway.util.private_files import make_private_directory, private_opener


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(top: Path) -> list[str]:
    """What others may read or enter below a directory."""
    found = []
    for folder, directories, files in os.walk(top):
        for name in (*directories, *files):
            path = Path(folder) / name
            try:
                told = path.lstat()
            except FileNotFoundError:
                continue
            if told.st_mode & 0o077 and not stat.S_ISLNK(told.st_mode):
                found.append(f"{stat.filemode(told.st_mode)} {path.relative_to(top)}")
    return found


class Looks(sw.KeyedProcessFunction[int, int, int]):
    """Writes down what others may read while the job runs."""

    def __init__(self, top: Path, told: Path) -> None:
        self.top = top
        self.told = told

    def open(self, context: sw.RuntimeContext) -> None:
        self.last = context.get_state(sw.ValueStateDescriptor("last", str))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> list[int]:
        self.last.update("x" * 100)
        if value % 100 == 99:
            with self.told.open("a") as file:
                file.writelines(f"{line}\n" for line in open_to_others(self.top))
        return [value]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_state_of_a_job_is_for_its_user_alone(
    backend: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    top, told = tmp_path / "top", tmp_path / "told"
    top.mkdir(0o700)
    monkeypatch.setenv("TMPDIR", str(top))
    monkeypatch.setattr(tempfile, "tempdir", None)
    flow = sw.Pipeline("private")
    keyed = flow.from_collection(range(2_000)).key_by(lambda value: value % 50)
    keyed.process(Looks(top, told)).filter(bool).print()
    told.touch()
    flow.run(
        workers=workers,
        state_backend=backend,
        checkpoint_interval="5ms",
        checkpoints=str(top / "made" / "checkpoints"),
        local_recovery="1000000",
        batch_size=10,
    )
    assert (top / "made" / "checkpoints").is_dir()
    assert not told.read_text()
    assert not open_to_others(top)


def test_parents_are_private_too(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b" / "c")
    make_private_directory(tmp_path / "a" / "b" / "c")
    with open(tmp_path / "a" / "file", "w", opener=private_opener) as file:
        file.write("x")
    assert not open_to_others(tmp_path)
    with pytest.raises(OSError, match="file"):
        make_private_directory(tmp_path / "a" / "file" / "below")


def test_a_home_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLUICEWAY_HOME", str(home))
    home.mkdir(0o777)
    for use in (ClusterClient, lambda: start_cluster(ClusterConfig(1, 1, "shm"))):
        with pytest.raises(ConfigurationError, match=r"others than you may write to .* \(chmod go-w\)"):
            use()
    assert not cluster_file().exists()
    home.chmod(0o700)
    cluster_file().write_text("{}")
    with pytest.raises(ConfigurationError, match=r"may write to the file of the cluster .*cluster\.json"):
        ClusterClient()


def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_private(tmp_path / "missing", "the home", "so what")
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match=r"the home .* belongs to another user \(uid \d+\), and so what"):
        check_private(tmp_path, "the home", "so what")


# ---- places for checkpoints that cannot be used ---------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file", r"checkpoints cannot be kept in .*file: .*file is not a directory"),
        ("file/below/it", r"checkpoints cannot be kept in .*it: .*file is not a directory"),
        ("/proc/nothing/here", r"kept in /proc/nothing/here: cannot write .*Name a directory, or a URL"),
        ("odd://place", r"kept in 'odd://place': Protocol not known: odd. Name a directory, or a URL of one"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_before_anything_runs(
    place: str, says: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    flow = sw.Pipeline("refused")
    out = flow.from_collection([1]).map(lambda value: Path("ran").touch()).collect()
    with pytest.raises((CheckpointError, ConfigurationError), match=says):
        flow.run(checkpoints=place, checkpoint_interval="10ms", workers=workers)
    assert not out
    assert not Path("ran").exists()


def test_what_a_storage_raises_names_it_and_the_place() -> None:
    class Vault:
        def check(self) -> None:
            raise TimeoutError("no answer in 3 s")

    services: Any = SimpleNamespace(checkpoint_storage=lambda location: Vault())
    says = "checkpoints cannot be kept in vault://u:\\*{3}@h/x: Vault raised TimeoutError: no answer in 3 s"
    with pytest.raises(CheckpointError, match=says):
        check_savepoint_place("vault://u:hush@h/x", services)


def test_a_place_that_can_be_used_holds_nothing_after_the_check(tmp_path: Path) -> None:
    storage = default_manager().services().checkpoint_storage(str(tmp_path / "place"))
    storage.check()
    assert not list(storage.files())
