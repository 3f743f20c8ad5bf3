"""Which checkpoints there are, what is kept and what goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.checkpoint import (
    CHECKPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    NativeFileEntry,
    SubtaskEntry,
    VertexEntry,
    find_checkpoints,
)
from sluiceway.checkpoint.metadata import KeyedEntry, NativeEntry, OperatorEntry
from sluiceway.checkpoint_storage import StoredFile
from sluiceway.clock import SystemClock
from sluiceway.errors import CheckpointError
from sluiceway_filesystem._local import LocalStorage
from sluiceway_filesystem._remote import RemoteStorage


def metadata(id_: int, *files: str) -> CheckpointMetadata:
    """A checkpoint that refers to files."""
    entries = tuple(NativeFileEntry(name=f, file=f, size=1, crc32=0, shared=f.startswith("..")) for f in files)
    keyed = KeyedEntry(tables=(), native=NativeEntry(format="rocks 1", start=0, end=1, files=entries))
    subtask = SubtaskEntry(index=0, operators=(OperatorEntry(uid="u", keyed=keyed),))
    vertex = VertexEntry(uid="u", name="u", parallelism=1, max_parallelism=1, subtasks=(subtask,))
    return CheckpointMetadata(
        job_name="job",
        job_id="run",
        checkpoint_id=id_,
        kind=CHECKPOINT,
        triggered_ms=0,
        completed_ms=0,
        vertices=(vertex,),
    )


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def complete(run: CheckpointDirectory, id_: int, *shared: str) -> None:
    files = [f"{id_}.state", *(f"../shared/{name}" for name in shared)]
    run.storage.write(f"{run.directory(id_)}/{id_}.state", (b"x",))
    for name in shared:
        run.storage.write(f"{run.path}/shared/{name}".lstrip("/"), (b"x",))
    run.complete(metadata(id_, *files))


def names(storage: LocalStorage) -> list[str]:
    return sorted(file.name for file in storage.files())


def test_checkpoints_are_listed_in_their_order_once_they_are_complete(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "jobs/run-1")
    assert run.ids() == []
    for id_ in (9, 10, 2):
        complete(run, id_)
    storage.write("jobs/run-1/chk-11/0-0.state", (b"under way",))
    storage.write("jobs/run-1/chk-x/metadata.json", (b"{}",))
    complete(CheckpointDirectory(storage, "jobs/run-2"), 12)
    assert run.ids() == CheckpointDirectory(storage, "jobs/run-1").ids() == [2, 9, 10]
    assert run.load(10) == metadata(10, "10.state")
    assert CheckpointDirectory(storage, "jobs/run-1").load(9).checkpoint_id == 9
    assert run.location(9) == f"{storage.location}/jobs/run-1/chk-9"
    assert list(find_checkpoints(storage, "jobs/run-2")) == ["jobs/run-2/chk-12"]


def test_completing_says_where_it_is(storage: LocalStorage) -> None:
    assert CheckpointDirectory(storage, "run").complete(metadata(3)) == f"{storage.location}/run/chk-3"
    assert CheckpointDirectory(storage).complete(metadata(3)) == f"{storage.location}/chk-3"


def test_the_newest_are_retained_with_what_they_share(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a", "b")
    complete(run, 2, "b", "c")
    complete(run, 3, "c", "d")
    assert run.retain(2) == [1]
    assert names(storage) == [
        "run/chk-2/2.state",
        "run/chk-2/metadata.json",
        "run/chk-3/3.state",
        "run/chk-3/metadata.json",
        "run/shared/b",
        "run/shared/c",
        "run/shared/d",
    ]
    assert CheckpointDirectory(storage, "run").retain(1) == [2]
    assert names(storage) == ["run/chk-3/3.state", "run/chk-3/metadata.json", "run/shared/c", "run/shared/d"]
    assert run.retain(5) == []
    assert run.retain(0) == [3]
    assert names(storage) == []


def test_a_run_shares_nothing_with_another(storage: LocalStorage) -> None:
    one, two = CheckpointDirectory(storage, "one"), CheckpointDirectory(storage, "two")
    complete(one, 1, "a")
    complete(two, 1, "a")
    one.discard(1)
    assert names(storage) == ["two/chk-1/1.state", "two/chk-1/metadata.json", "two/shared/a"]


def test_an_incomplete_checkpoint_can_be_discarded(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    storage.write("run/chk-2/0-0.state", (b"x",))
    storage.write("run/shared/b", (b"x",))
    run.discard(2)
    assert names(storage) == ["run/chk-1/1.state", "run/chk-1/metadata.json", "run/shared/a", "run/shared/b"]
    run.discard(3)


def test_a_damaged_checkpoint_can_be_discarded(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    complete(run, 2, "a")
    storage.write("run/chk-1/metadata.json", (b"?",))
    CheckpointDirectory(storage, "run").discard(1)
    assert names(storage) == ["run/chk-2/2.state", "run/chk-2/metadata.json", "run/shared/a"]
    # Beside a damaged one, shared files stay: it may need them.
    complete(run, 3, "a", "b")
    storage.write("run/chk-2/metadata.json", (b"?",))
    CheckpointDirectory(storage, "run").discard(3)
    assert "run/shared/b" in names(storage)


def test_the_newest_one_goes_without_what_it_shares(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    complete(run, 2, "a", "b")
    run.discard(2, shared=False)
    assert names(storage) == ["run/chk-1/1.state", "run/chk-1/metadata.json", "run/shared/a", "run/shared/b"]
    run.delete_shared(["a", "b"])
    assert names(storage) == ["run/chk-1/1.state", "run/chk-1/metadata.json", "run/shared/a"]


def test_what_given_up_ones_have_shared_goes_but_for_what_complete_ones_need(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    complete(run, 3, "b")
    storage.write("run/shared/c", (b"x",))
    run.delete_shared(["a", "b", "c", "never written"])
    assert [name for name in names(storage) if "shared" in name] == ["run/shared/a", "run/shared/b"]


# -- orphans --------------------------------------------------------------------------------------------------


def test_what_nothing_refers_to_is_collected_when_it_is_old(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    broken = "savepoint-job-1-1795-3"
    left = ["run/chk-1/1.state.part-00", "run/chk-2/0-0.state", "run/shared/b", f"{broken}/0-0.state"]
    young = ["run-2/chk-3/0-0.state", "run-2/chk-3/1-0.state", "run-2/shared/b"]
    others = ["run/notes.txt", "shared/data.txt", "savepoints/notes.txt"]
    for name in [*left, *young, *others]:
        storage.write(name, (b"xy",))
    for name in [*left, *young, *others, "run/shared/a"]:
        os.utime(tmp_path / name, (1_000, 1_000))
    everything = CheckpointDirectory(storage)
    now_ms = 1_000_000 + 60_000
    os.utime(tmp_path / "run-2/chk-3/0-0.state", (1_050, 1_050))

    found = everything.collect(now_ms, 60_000, dry_run=True)
    assert [file.name for file in found.files] == left
    assert [file.name for file in found.kept] == young, "all of what may be under way"
    assert found.size == 8
    assert set(left) <= set(names(storage))

    assert everything.collect(now_ms, 60_000) == found
    kept = ["run/chk-1/1.state", "run/chk-1/metadata.json", "run/shared/a"]
    assert names(storage) == sorted([*kept, *young, *others])
    assert everything.collect(now_ms + 60_000, 60_000).files == found.kept
    assert names(storage) == sorted([*kept, *others])


def test_in_a_storage_that_knows_no_times_nothing_is_old(tmp_path: Path) -> None:
    class Timeless(LocalStorage):
        def files(self, directory: str = "") -> Iterator[StoredFile]:
            return (replace(file, modified_ms=0) for file in super().files(directory))

    storage = Timeless(str(tmp_path))
    complete(CheckpointDirectory(storage, "run"), 1, "a")
    for name in ("run/chk-2/0-0.state", "run/shared/b"):
        storage.write(name, (b"xy",))
    everything = CheckpointDirectory(storage)
    found = everything.collect(10**12, 3_600_000)
    assert (found.files, len(found.kept)) == ((), 2)
    assert [file.name for file in everything.collect(10**12, 0).files] == ["run/chk-2/0-0.state", "run/shared/b"]


def test_a_run_of_which_only_shared_files_are_left_is_known_by_its_name(storage: LocalStorage) -> None:
    for name in ("job-1795295476765-8430/shared/a", "data/shared/a"):
        storage.write(name, (b"xy",))
    CheckpointDirectory(storage).collect(1 << 50, 0)
    assert names(storage) == ["data/shared/a"]


def test_what_is_put_from_an_old_file_is_young(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "kept"))
    local = tmp_path / "local.sst"
    local.write_bytes(b"x")
    os.utime(local, (1_000, 1_000))
    storage.put_file("run/shared/a", str(local))
    (file,) = storage.files()
    assert file.modified_ms > 1_000_000


class Restless(LocalStorage):
    """Something happens while it is listed for the first time, the third, ...: before a directory is."""

    before: tuple[str, Callable[[], None]] = ("", lambda: None)
    listings = 0

    def files(self, directory: str = "") -> Iterator[StoredFile]:
        self.listings += 1
        happened = self.listings % 2 == 0
        for file in sorted(super().files(directory), key=lambda file: file.name):
            if not happened and file.name.startswith(self.before[0]):
                happened = True
                self.before[1]()
            if os.path.exists(self._path(file.name)):
                yield file


@pytest.mark.parametrize("moments", [1, 100])
def test_a_job_may_go_on_while_orphans_are_collected(tmp_path: Path, moments: int) -> None:
    """Checkpoint 1 is listed when it has gone, and checkpoint 2, which shares its files, before it is complete."""
    storage = Restless(str(tmp_path))
    run = CheckpointDirectory(LocalStorage(str(tmp_path)), "job-1-8430")
    complete(run, 1, "a")
    shared = ["job-1-8430/shared/a", "job-1-8430/shared/orphan"]
    storage.write(shared[1], (b"x",))
    for name in shared:
        os.utime(tmp_path / name, (1_000, 1_000))
    last = 1

    def goes_on() -> None:
        nonlocal last
        storage.write(f"job-1-8430/chk-{last + 1}/{last + 1}.state", (b"x",))
        run.complete(metadata(last + 1, f"{last + 1}.state", "../shared/a"))
        run.discard(last)
        last += 1
        if last <= moments:
            storage.before = f"job-1-8430/chk-{last}/", goes_on
        else:
            storage.before = "nothing more", goes_on

    storage.before = "job-1-8430/chk-1/", goes_on
    found = CheckpointDirectory(storage).collect(SystemClock().now_ms(), 60_000)
    assert shared[0] in names(run.storage), "it is not deleted under the one that refers to it now"
    assert (shared[1] in names(run.storage)) == (moments > 5), "a run that is never at rest keeps them"
    assert [file.name for file in found.kept if file.name in shared] == (shared if moments > 5 else [])


def test_several_may_collect_at_a_time(tmp_path: Path) -> None:
    run = CheckpointDirectory(LocalStorage(str(tmp_path)), "run")
    complete(run, 1, "a")
    for number in range(50):
        run.storage.write(f"run/chk-{number + 2}/0.state", (b"x",))
        run.storage.write(f"run/shared/{number}", (b"x",))
    with ThreadPoolExecutor(4) as pool:
        places = [CheckpointDirectory(LocalStorage(str(tmp_path))) for _ in range(4)]
        for collecting in [pool.submit(place.collect, 1 << 50, 0) for place in places]:
            collecting.result()
    assert names(run.storage) == ["run/chk-1/1.state", "run/chk-1/metadata.json", "run/shared/a"]


def test_nothing_is_collected_beside_damaged_metadata(storage: LocalStorage) -> None:
    run = CheckpointDirectory(storage, "run")
    complete(run, 1, "a")
    storage.write("run/shared/b", (b"x",))
    storage.write("run/chk-1/metadata.json", (b"?",))
    with pytest.raises(CheckpointError, match=r"chk-1/metadata\.json"):
        CheckpointDirectory(storage, "run").collect(1 << 50, 0)
    assert "run/shared/b" in names(storage)


# -- a job that goes on, against a model ------------------------------------------------------------------------


RUN = "job-1-8430"
"""A directory that is known as that of a run when it has shared files alone."""


class Lives(RuleBasedStateMachine):
    """Checkpoints are begun, completed, given up and dropped; a complete one always has all of its files."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = RemoteStorage("memory://lives")
        self.storage.delete([file.name for file in self.storage.files()])
        self.run_ = CheckpointDirectory(self.storage, RUN)
        self.next = 1
        self.live: list[int] = []  # files of the database, oldest first
        self.files = 0
        self.known: set[str] = set()  # what the newest complete one refers to
        self.begun: dict[int, list[str]] = {}
        self.complete: dict[int, set[str]] = {}

    @rule(new=st.integers(0, 3), compacted=st.integers(0, 2))
    def work(self, new: int, compacted: int) -> None:
        self.live = self.live[compacted:] + list(range(self.files, self.files + new))
        self.files += new

    @rule()
    def begin(self) -> None:
        id_, self.next = self.next, self.next + 1
        own = f"{id_}.state"
        self.storage.write(f"{RUN}/chk-{id_}/{own}", (b"x",))
        shared = [f"../shared/{i}" for i in self.live]
        for name in shared:
            if name not in self.known:
                self.storage.write(RUN + name[2:], (b"x",))
        self.begun[id_] = [own, *shared]

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.begun)))
        files = self.begun.pop(id_)
        for older in [other for other in self.begun if other < id_]:
            del self.begun[older]
            self.run_.discard(older)
        self.run_.complete(metadata(id_, *files))
        self.complete[id_] = set(files)
        self.known = set(files)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.begun)))
        del self.begun[id_]
        self.run_.discard(id_)

    @precondition(lambda self: self.complete)
    @rule(count=st.integers(1, 2))
    def retain(self, count: int) -> None:
        dropped = self.run_.retain(count)
        assert sorted(self.complete)[:-count] == dropped
        for id_ in dropped:
            del self.complete[id_]

    @rule()
    def restart(self) -> None:
        self.run_ = CheckpointDirectory(self.storage, RUN)

    @precondition(lambda self: not self.begun)
    @rule()
    def collect(self) -> None:
        self.run_.collect(1 << 50, 0)
        wanted = {f"{RUN}/chk-{id_}/metadata.json" for id_ in self.complete}
        for id_, files in self.complete.items():
            wanted |= {f"{RUN}/chk-{id_}/{f}" if not f.startswith("..") else RUN + f[2:] for f in files}
        assert {file.name for file in self.storage.files()} == wanted

    @invariant()
    def complete_ones_are_whole(self) -> None:
        there = {file.name for file in self.storage.files()}
        assert self.run_.ids() == sorted(self.complete)
        everything = {**self.complete, **{id_: set(files) for id_, files in self.begun.items()}}
        for id_, files in everything.items():
            for name in files:
                assert (f"{RUN}/chk-{id_}/{name}" if not name.startswith("..") else RUN + name[2:]) in there


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
