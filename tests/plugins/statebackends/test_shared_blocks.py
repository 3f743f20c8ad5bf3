"""Blocks of columns that checkpoints share: a complete one has all of them, whatever becomes of others."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.effort import examples

from sluiceway.checkpoint import METADATA, CheckpointDirectory, StateReader, read_operators, restore, write_subtask
from sluiceway.clock import VirtualClock
from sluiceway.errors import CheckpointError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.jobmanager.checkpoint_records import CompletedCheckpoint
from sluiceway.runtime.jobmanager.checkpoint_store import StorageCheckpointStore
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.runtime.taskmanager.snapshot_writer import StorageWriter
from sluiceway.state import (
    BackendContext,
    BlockStateDescriptor,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    ValueStateDescriptor,
)
from sluiceway.state.heap import shared
from sluiceway_filestate._backend import FilesystemStateBackend
from sluiceway_filesystem._local import LocalStorage
from sluiceway_memory._backend import MemoryStateBackend
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions

T = TypeVar("T")

GROUPS = 6
KEYS = [next(key for key in range(1000) if key_group(key, GROUPS) == group) for group in range(GROUPS)]
"""The key of each key group."""

BLOCKS = BlockStateDescriptor("blocks", bytes)
PROGRESS = ValueStateDescriptor("progress", int)
LARGE, SMALL = 40, 3
"""Bytes of blocks of which a namespace is stored apart, and not."""

MAKE: dict[str, Callable[[str], StateBackend]] = {
    "memory": lambda place: MemoryStateBackend(),
    "filesystem": lambda place: FilesystemStateBackend(place),
    "rocksdb": lambda place: RocksDBStateBackend(RocksDBOptions(place)),
}

Model = dict[tuple[int, int], dict[int, bytes]]
"""By namespace the blocks by key."""


@pytest.fixture(autouse=True)
def _small_blocks_are_stored_apart() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "_LEAST", LARGE)
        patch.setattr(restore, "_AHEAD", 300)  # several reads for a file
        yield


class Later(Background):
    """Runs what is asked of it when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        self.waiting.append(lambda: done(work(), None))

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Job:
    """A job with one step, its job manager and its workers, and what is true of it."""

    def __init__(self, place: str, backend: str, parallelism: int, retained: int = 1) -> None:
        self.place, self.backend, self.parallelism, self.retained = place, backend, parallelism, retained
        self.storage = LocalStorage(f"{place}/checkpoints")
        self.directory = CheckpointDirectory(self.storage, "run")
        self.background = Later()
        self.vertices = [
            SimpleNamespace(
                id=0, uid="uid-7", name="it", parallelism=parallelism, max_parallelism=GROUPS, nodes=()
            )
        ]
        graph: Any = SimpleNamespace(job_name="job", vertices=self.vertices)
        self.store = StorageCheckpointStore(self.directory, graph, "job", VirtualClock(), self.background)
        self.model: Model = {}
        self.count = self.attempt = self.id = 0
        self.pending: dict[int, dict[tuple[int, int], TaskSnapshot]] = {}
        self.storing: set[int] = set()
        self.kept: list[CompletedCheckpoint] = []
        self.models: dict[int, Model] = {}
        self.backends: list[KeyedStateBackend] = []
        self.deploy([])

    # ---- workers ----------------------------------------------------------------------------------------------

    def deploy(self, kept: list[KeyedSnapshot]) -> None:
        self.attempt += 1
        self.writer = StorageWriter(self.storage)
        self.vertices[0].parallelism = self.parallelism
        for old in self.backends:
            old.close()
        self.ranges = [KeyGroupRange.of_subtask(n, self.parallelism, GROUPS) for n in range(self.parallelism)]
        self.backends = []
        for number, own in enumerate(self.ranges):
            made = MAKE[self.backend](self.place).create_keyed(BackendContext("uid-7", number, own, GROUPS))
            if kept:
                made.restore(kept)
            made.table(PROGRESS)
            self.backends.append(made)

    def of(self, group: int) -> Any:
        owner = next(n for n, own in enumerate(self.ranges) if own.start <= group < own.end)
        return self.backends[owner].table(BLOCKS)

    def put(self, namespace: tuple[int, int], size: int, groups: range = range(GROUPS)) -> None:
        for group in groups:
            self.count += 1
            block = self.count.to_bytes(SMALL, "big").ljust(size, b".")
            self.model.setdefault(namespace, {})[KEYS[group]] = block
            self.of(group).entries(namespace)[KEYS[group]] = block

    def drop(self, namespace: tuple[int, int]) -> None:
        self.model.pop(namespace, None)
        for backend in self.backends:
            backend.table(BLOCKS).drop(namespace)

    # ---- checkpoints ------------------------------------------------------------------------------------------

    def begin(self, *, is_declined: bool = False) -> None:
        self.id += 1
        self.models[self.id] = {name: dict(blocks) for name, blocks in self.model.items()}
        tasks = {}
        for number, backend in enumerate(self.backends):
            deployment: Any = SimpleNamespace(
                checkpoint_path="run",
                vertex=self.vertices[0],
                subtask=number,
                attempt=self.attempt,
                attempt_id=f"{self.attempt}-{number}",
            )
            taken = TaskSnapshot(
                (OperatorSnapshot("uid-7", subtask=number, keyed=backend.snapshot()),), checkpoint_id=self.id
            )
            if not (is_declined and number):
                tasks[0, number] = written = self.writer.write(deployment, self.id, taken)
                self.writer.written(deployment.attempt_id, self.id, written.entry)
        self.pending[self.id] = tasks
        if is_declined:
            self.abort(self.id)

    def keep(self, id_: int) -> None:
        self.storing.add(id_)
        checkpoint = CompletedCheckpoint(id_, 0, self.pending[id_], {})
        self.store.keep(checkpoint, lambda problem: self.stored(checkpoint))

    def stored(self, checkpoint: CompletedCheckpoint) -> None:
        id_ = checkpoint.checkpoint_id
        if id_ not in self.pending:
            self.store.discard(checkpoint)
            return
        for older in [other for other in self.pending if other < id_]:
            self.abort(older)
        del self.pending[id_]
        self.kept.append(checkpoint)
        while len(self.kept) > self.retained:
            self.store.discard(self.kept.pop(0))

    def abort(self, id_: int) -> None:
        parts = self.pending.pop(id_)
        if id_ not in self.storing:
            for part in parts.values():
                self.store.discard_part(id_, part)

    def notify(self) -> None:
        if self.kept:
            attempts = [f"{self.attempt}-{number}" for number in range(self.parallelism)]
            self.writer.completed(attempts, self.kept[-1].checkpoint_id)

    def restart(self, parallelism: int, backend: str) -> None:
        for id_ in list(self.pending):
            self.abort(id_)
        self.background.work()
        self.parallelism, self.backend = parallelism, backend
        if not self.kept:
            self.model = {}
            self.deploy([])
            return
        latest = self.kept[-1]
        loaded: list[JobSnapshot] = []
        self.store.load(latest, lambda snapshot, problem: loaded.append(cast("JobSnapshot", snapshot)))
        self.background.work()
        self.deploy([o.keyed for o in loaded[0].operators if o.keyed is not None])
        self.model = {name: dict(blocks) for name, blocks in self.models[latest.checkpoint_id].items()}
        # All of it is in the tables, and what a later checkpoint has is read from there.
        assert found_in(self.backends) == self.model

    def savepoint(self) -> None:
        self.id += 1
        parts = []
        for number, backend in enumerate(self.backends):
            taken = [OperatorSnapshot("uid-7", subtask=number, keyed=backend.snapshot())]
            where = f"savepoint-job-{self.id}-0"
            entry = write_subtask(self.storage, where, f"{number}.state", number, taken, canonical=True)
            assert entry.size == entry.written
            assert not any(o.keyed.shared for o in entry.operators if o.keyed is not None)
            parts += [StateReader(self.storage, where).operator(o).keyed for o in entry.operators]
        assert read(self, [keyed for keyed in parts if keyed is not None]) == self.model

    def gc(self) -> None:
        self.background.work()
        if not self.pending:  # of those in progress it would delete what no metadata refer to
            self.directory.collect(1 << 50, 0)

    def check(self) -> None:
        """Read all complete checkpoints."""
        self.background.work()
        for checkpoint in self.kept:
            id_ = checkpoint.checkpoint_id
            operators = read_operators(self.storage, self.directory.directory(id_), self.directory.load(id_))
            assert read(self, [o.keyed for o in operators if o.keyed is not None]) == self.models[id_], id_

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def found_in(backends: list[KeyedStateBackend]) -> Model:
    found: Model = {}
    for backend in backends:
        table = backend.table(BLOCKS)
        for namespace in list(table.namespaces()):
            found.setdefault(namespace, {}).update(table.entries(namespace))  # type: ignore[arg-type]
    return found


def read(job: Job, kept: list[KeyedSnapshot]) -> Model:
    backend = MemoryStateBackend().create_keyed(BackendContext("uid-7", 0, KeyGroupRange(0, GROUPS), GROUPS))
    backend.restore(kept)
    return found_in([backend])


NAMESPACES = st.integers(0, 3).map(lambda start: (start, start + 1))
HEAP = st.sampled_from(["memory", "filesystem"])
STEPS = st.lists(
    st.tuples(st.just("put"), NAMESPACES, st.sampled_from([SMALL, LARGE, LARGE]))
    | st.tuples(st.just("change"), NAMESPACES, st.integers(0, GROUPS - 1))
    | st.tuples(st.just("drop"), NAMESPACES)
    | st.tuples(st.just("begin"), st.booleans())
    | st.tuples(st.just("keep"), st.booleans())
    | st.tuples(st.just("abort"), st.booleans())
    | st.tuples(st.sampled_from(["work", "notify", "round", "round", "savepoint", "gc", "check"]))
    | st.tuples(st.just("restart"), st.integers(1, 3), HEAP),
    max_size=40,
)


ONE = (0, 1)
PUT: tuple[Any, ...] = ("put", ONE, LARGE)


# Aborted while it was stored, while the next one writes the same blocks again.
@example(1, "memory", 1, [PUT, ("begin", False), ("keep", True), ("abort", True), ("begin", False), ("work",)])
# Aborted, and its blocks are deleted before the next one.
@example(1, "memory", 1, [PUT, ("round",), PUT, ("begin", False), ("abort", True), ("gc",), ("round",)])
# Subsumed while it was stored, by one without its blocks.
@example(
    1,
    "filesystem",
    1,
    [
        PUT,
        ("round",),
        ("put", (1, 2), LARGE),
        ("begin", False),
        ("drop", (1, 2)),
        ("begin", False),
        ("keep", False),
        ("keep", True),
        ("check",),
        ("put", (1, 2), LARGE),
        ("round",),
    ],
)
# Tasks hear of completions late, when what they know to be stored is in no checkpoint that is left.
@example(2, "memory", 1, [PUT, ("round",), ("begin", False), ("keep", True), ("work",), ("begin", False)])
@example(2, "memory", 2, [PUT, ("round",), ("drop", ONE), PUT, ("round",), ("restart", 3, "filesystem")])
@given(st.integers(1, 3), HEAP, st.integers(1, 2), STEPS)
@examples(60, 3000)
def test_a_complete_checkpoint_has_all_of_its_blocks(
    parallelism: int, backend: str, retained: int, steps: list[tuple[Any, ...]]
) -> None:
    with TemporaryDirectory() as place:
        job = Job(place, backend, parallelism, retained)
        for what, *rest in steps:
            ids = [id_ for id_ in job.pending if id_ not in job.storing]
            if what == "put":
                job.put(*rest)
            elif what == "change":
                if rest[0] in job.model:
                    job.put(rest[0], LARGE, range(rest[1], rest[1] + 1))
            elif what == "begin":
                job.begin(is_declined=rest[0] and job.parallelism > 1)
            elif what == "keep":
                if ids:
                    job.keep(ids[0 if rest[0] else -1])
            elif what == "abort":
                if job.pending:
                    job.abort(list(job.pending)[0 if rest[0] else -1])
            elif what == "round":
                job.begin()
                job.keep(job.id)
                job.background.work()
                job.notify()
            elif what == "work":
                job.background.work()
            else:
                getattr(job, what)(*rest)
        job.check()
        # Nothing is left over but what an abort has left for the next complete checkpoint.
        for id_ in list(job.pending)[-1:]:
            job.keep(id_)
            job.check()
        job.begin()
        job.keep(job.id)
        job.check()
        needed = {
            f"run/{name.removeprefix('../')}"
            for id_ in job.directory.ids()
            for name in job.directory.load(id_).files()
        }
        left = {file.name for file in job.storage.files("run/shared")}
        assert left <= needed
        job.close()


def test_blocks_that_have_not_changed_are_not_written_again(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "memory", 2)
    written = []
    for step in range(4):
        if step < 2:
            job.put((step, step + 1), 10_000)
        if step == 3:
            job.put((0, 1), 10_000, range(1))
        job.begin()
        job.keep(job.id)
        job.background.work()
        job.notify()
        written.append(job.directory.load(job.id).written)
        assert job.directory.load(job.id).size > 60_000 * min(step + 1, 2)
    assert written[0] > 60_000
    assert written[1] > 60_000
    assert written[1] < 70_000, "only the second namespace"
    assert written[2] < 2_000, "neither"
    assert 30_000 < written[3] < 40_000, "the first one of the subtask that has changed it"
    assert [file.size > 30_000 for file in job.storage.files("run/shared")] == [True] * 4
    job.check()
    job.close()


def test_a_repeated_notification_of_one_attempt_concerns_no_other(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "memory", 2)
    job.put(ONE, 10_000)
    job.begin()
    job.keep(job.id)
    job.background.work()
    job.notify()
    job.writer.completed([f"{job.attempt}-1"], job.id)  # as it has shown no reaction
    job.begin()
    job.keep(job.id)
    job.background.work()
    assert job.directory.load(job.id).written < 2_000
    job.close()


def test_what_ended_attempts_have_written_is_forgotten(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "memory", 1)
    job.put(ONE, 10_000)
    job.begin()
    job.keep(job.id)
    job.background.work()
    job.notify()
    job.writer.forget(f"{job.attempt}-0")
    job.begin()
    job.keep(job.id)
    job.background.work()
    assert job.directory.load(job.id).written > 10_000
    job.close()


def stored(place: Path) -> Job:
    """Return a job with a complete checkpoint."""
    job = Job(str(place), "memory", 1)
    job.put(ONE, 1000)
    job.put((1, 2), 1000)
    job.begin()
    job.keep(job.id)
    job.check()
    return job


@pytest.mark.parametrize("at", ["rows", "index", "end", "all"])
def test_a_damaged_file_is_named(at: str, tmp_path: Path) -> None:
    job = stored(tmp_path)
    [path, _] = sorted((tmp_path / "checkpoints/run/shared").iterdir())
    data = bytearray(path.read_bytes())
    if at == "end":
        del data[-40:]
    elif at != "all":
        data[200 if at == "rows" else -3] ^= 0xFF
    path.write_bytes(data)
    if at == "all":
        path.unlink()
    with pytest.raises(CheckpointError, match=path.name):
        job.check()
    job.close()


def test_earlier_versions_refuse_what_they_would_leave_out(tmp_path: Path) -> None:
    job = stored(tmp_path)
    assert b'"version":3' in (tmp_path / "checkpoints/run/chk-1" / METADATA).read_bytes()[:60]
    job.drop(ONE)
    job.drop((1, 2))
    job.put(ONE, SMALL)
    job.begin()
    job.keep(job.id)
    job.check()
    assert b'"version":1' in (tmp_path / "checkpoints/run/chk-2" / METADATA).read_bytes()[:60]
    assert not list(tmp_path.glob("checkpoints/run/shared/*"))
    job.close()


def test_snapshots_that_are_sent_hold_their_blocks(tmp_path: Path) -> None:
    job = stored(tmp_path)
    [backend] = job.backends
    sent = pickle.loads(pickle.dumps(backend.snapshot()))
    assert type(sent.groups) is dict
    assert read(job, [sent]) == job.model
    # One that was read from a checkpoint is read where it is sent.
    [operator] = read_operators(job.storage, "run/chk-1", job.directory.load(1))
    assert operator.keyed is not None
    dict(operator.keyed.groups)
    data = pickle.dumps(operator.keyed)
    assert len(data) < 2_000
    assert read(job, [pickle.loads(data)]) == job.model
    job.close()


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST", 3)
    job = Job(str(tmp_path), "memory", 1)
    for start in range(5):
        job.put((start, start + 1), LARGE)
    for _ in range(2):
        job.begin()
        job.keep(job.id)
        job.check()
        job.notify()
        assert len(list(job.storage.files("run/shared"))) == 3
        job.drop((0, 1))
    job.close()
