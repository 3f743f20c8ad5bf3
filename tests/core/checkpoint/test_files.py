"""State written as files and read again; metadata; damage."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway.checkpoint import (
    CHECKPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    StateReader,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    decode_metadata,
    decode_subtask,
    encode_metadata,
    encode_subtask,
    load_metadata,
    read_enumerators,
    read_operators,
    shared_files,
    split_location,
    write_enumerators,
    write_subtask,
)
from sluiceway.checkpoint.files import join
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.serializers import KEY_SERIALIZER, Row, encode_rows
from sluiceway.state import KeyedSnapshot, NativeFile, NativeState, StateMeta, TableKind
from sluiceway_filesystem._local import LocalStorage

COUNTS = StateMeta("counts", TableKind.VALUE, "msgspec", 1, "int", True, "reducing", 5000)
SEEN = StateMeta("seen", TableKind.MAP, "pickle", 1)


@dataclass(frozen=True)
class Split:
    path: str
    offset: int


def rows(*keys: str) -> bytes:
    return encode_rows(
        [Row(0, KEY_SERIALIZER.dumps(()), KEY_SERIALIZER.dumps(key), KEY_SERIALIZER.dumps(1)) for key in keys]
    )


def all_there_is() -> list[OperatorSnapshot]:
    lists = (
        ListSnapshot("offsets", ListMode.SPLIT, "msgspec", 1, "int", 1, 2, (b"\x01", b"\x02")),
        ListSnapshot("known", ListMode.UNION, "pickle", 3, "", 1, 2),
    )
    return [
        OperatorSnapshot("source", splits=(Split("a", 5), {"plain": [1]})),
        OperatorSnapshot("count", keyed=KeyedSnapshot((COUNTS, SEEN), {3: rows("a", "b"), 1: rows("c")})),
        OperatorSnapshot("rules", lists=lists, broadcast={"rules": {"x": Split("b", 1), 2: None}, "none": {}}),
        OperatorSnapshot("async", pending=(("record", 17), (Split("c", 2), None))),
        OperatorSnapshot("written", committables=(Split("d", 3), "transaction")),
        OperatorSnapshot("nothing"),
    ]


def metadata(*subtasks: SubtaskEntry, id_: int = 7, **others: Any) -> CheckpointMetadata:
    vertex = VertexEntry(
        uid="source",
        name="read and count",
        parallelism=2,
        max_parallelism=128,
        steps=(StepEntry(uid="source", name="read", kind="source"), StepEntry(uid="count")),
        subtasks=subtasks,
    )
    return CheckpointMetadata(
        job_name="job",
        job_id="run-1",
        checkpoint_id=id_,
        kind=CHECKPOINT,
        triggered_ms=1_000,
        completed_ms=1_200,
        vertices=(vertex,),
        **others,
    )


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "checkpoints"))


# -- there and back -------------------------------------------------------------------------------------------


def test_state_comes_back_as_it_was(storage: LocalStorage) -> None:
    entry = write_subtask(
        storage, "run/chk-7", "0-1.state", 1, all_there_is(), attachments={"in flight": b"\x00channel"}
    )
    entry = decode_subtask(encode_subtask(entry))
    back = read_operators(storage, "run/chk-7", metadata(entry))
    assert list(back) == [replace(snapshot, subtask=1, parallelism=2) for snapshot in all_there_is()]
    assert back[1].keyed is not None
    assert [(m.declared, m.ttl_ms) for m in back[1].keyed.tables] == [("reducing", 5000), ("", None)]
    assert StateReader(storage, "run/chk-7").attachment(entry, "in flight") == b"\x00channel"
    [file] = storage.files()
    assert file.name == "run/chk-7/0-1.state"
    assert entry.size == entry.written == file.size
    assert (entry.index, entry.finished) == (1, False)


def test_subtasks_come_in_their_order(storage: LocalStorage) -> None:
    entries = [
        write_subtask(storage, "chk-1", f"0-{i}", i, [OperatorSnapshot("source", splits=(i,))]) for i in (2, 0, 1)
    ]
    assert [s.splits for s in read_operators(storage, "chk-1", metadata(*entries))] == [(0,), (1,), (2,)]


def test_nothing_is_written_where_there_is_nothing(storage: LocalStorage) -> None:
    empty = [OperatorSnapshot("a", keyed=KeyedSnapshot((COUNTS,), {}), broadcast=None), OperatorSnapshot("b")]
    entry = write_subtask(storage, "chk-1", "0-0", 0, empty, finished=True)
    assert list(storage.files()) == []
    assert (entry.size, entry.written, entry.finished) == (0, 0, True)
    back = read_operators(storage, "chk-1", metadata(entry))
    assert list(back) == [replace(snapshot, parallelism=2, drained=True) for snapshot in empty]


def test_what_was_read_can_be_sent_and_is_read_by_key_group(storage: LocalStorage) -> None:
    entry = write_subtask(storage, "chk-1", "0-0", 0, all_there_is())
    snapshots = pickle.loads(pickle.dumps(read_operators(storage, "chk-1", metadata(entry))))
    keyed = snapshots[1].keyed
    assert sorted(keyed.groups) == [1, 3]
    assert len(keyed.groups) == 2
    assert keyed.groups[3] == rows("a", "b")
    with pytest.raises(KeyError):
        keyed.groups[2]
    storage.delete(["chk-1/0-0"])
    assert sorted(keyed.groups) == [1, 3]
    with pytest.raises(CheckpointError, match="chk-1/0-0: No such file"):
        keyed.groups[1]


def test_enumerators(storage: LocalStorage) -> None:
    kept = {"source": {"found": ["a", "b"]}, "other": Split("x", 1)}
    sections = write_enumerators(storage, "chk-1", kept)
    found = metadata(enumerators=sections)
    assert read_enumerators(storage, "chk-1", found) == kept
    assert found.files() == {"enumerators.state"}
    assert found.size == found.written > 0
    assert write_enumerators(storage, "chk-2", {}) == {}


def test_many_rows_are_written_piece_by_piece(storage: LocalStorage) -> None:
    groups = {group: rows(*(f"{group}-{i}" for i in range(500))) for group in range(128)}
    entry = write_subtask(
        storage, "chk-1", "0-0", 0, [OperatorSnapshot("u", keyed=KeyedSnapshot((COUNTS,), groups))]
    )
    [snapshot] = read_operators(storage, "chk-1", metadata(entry))
    assert snapshot.keyed is not None
    assert dict(snapshot.keyed.groups) == groups


class Lazy(Mapping[int, bytes]):
    """Rows that are made while they are read."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def __getitem__(self, group: int) -> bytes:
        if self.fails:
            raise SerializationError("state 'counts', key 'x': no")
        return rows(str(group))

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("fails", [False, True])
def test_snapshots_are_released_when_they_are_written(storage: LocalStorage, fails: bool) -> None:
    released: list[str] = []
    snapshots = [
        OperatorSnapshot(
            uid, keyed=KeyedSnapshot((COUNTS,), Lazy(fails), None, lambda uid=uid: released.append(uid))
        )
        for uid in ("a", "b")
    ]
    if fails:
        with pytest.raises(SerializationError, match="'counts'"):
            write_subtask(storage, "chk-1", "0-0", 0, snapshots)
    else:
        write_subtask(storage, "chk-1", "0-0", 0, snapshots)
    assert released == ["a", "b"]
    assert [file.name for file in storage.files()] == ([] if fails else ["chk-1/0-0"])


# -- files of a backend ---------------------------------------------------------------------------------------


class Files(NativeState):
    """A backend's files in a directory."""

    format = "rocks 1"
    key_groups = KeyGroupRange(0, 64)

    def __init__(self, directory: Path, **contents: bytes) -> None:
        self.directory = directory
        self.properties = {"tables": "x"}
        directory.mkdir(exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
        self.files = tuple(
            NativeFile(name, len(content), f"db-{name}" if name.startswith("s") else "")
            for name, content in contents.items()
        )

    def fetch(self, name: str, path: str) -> None:
        raise NotImplementedError

    def local_path(self, name: str) -> str:
        return str(self.directory / name)


def native(directory: Path, **contents: bytes) -> list[OperatorSnapshot]:
    groups = {1: rows("a")}
    return [OperatorSnapshot("count", keyed=KeyedSnapshot((COUNTS,), groups, Files(directory, **contents)))]


def test_files_of_a_backend_are_stored_and_fetched(storage: LocalStorage, tmp_path: Path) -> None:
    taken = native(tmp_path / "db", s1=b"one", s2=b"two", manifest=b"1 2")
    entry = write_subtask(storage, "run/chk-1", "0-0", 0, taken)
    assert sorted(file.name for file in storage.files()) == [
        "run/chk-1/0-0.2",
        "run/shared/db-s1",
        "run/shared/db-s2",
    ]
    [back] = pickle.loads(pickle.dumps(read_operators(storage, "run/chk-1", metadata(entry))))
    assert back.keyed.tables == (COUNTS,)
    stored = back.keyed.native
    assert (stored.format, stored.key_groups, dict(stored.properties)) == ("rocks 1", (0, 64), {"tables": "x"})
    assert stored.files == taken[0].keyed.native.files  # type: ignore[union-attr]
    for name, content in (("s1", b"one"), ("manifest", b"1 2")):
        stored.fetch(name, str(tmp_path / "fetched"))
        assert (tmp_path / "fetched").read_bytes() == content
        (tmp_path / "fetched").unlink()


def test_another_backend_cannot_read_them_and_says_so(storage: LocalStorage, tmp_path: Path) -> None:
    entry = write_subtask(storage, "run/chk-1", "0-0", 0, native(tmp_path / "db", s1=b"one"))
    [back] = read_operators(storage, "run/chk-1", metadata(entry))
    assert back.keyed is not None
    assert back.keyed.groups, "there is state"
    with pytest.raises(StateError, match=r"run/chk-1/ is in the format 'rocks 1' of a state backend, which"):
        dict(back.keyed.groups)


def test_a_savepoint_has_rows_and_no_files_of_a_backend(storage: LocalStorage, tmp_path: Path) -> None:
    entry = write_subtask(storage, "sp", "0-0", 0, native(tmp_path / "db", s1=b"one"), canonical=True)
    [back] = read_operators(storage, "sp", metadata(entry))
    assert back.keyed is not None
    assert back.keyed.native is None
    assert dict(back.keyed.groups) == {1: rows("a")}
    assert [file.name for file in storage.files()] == ["sp/0-0"]


def test_what_is_stored_already_is_not_written_again(storage: LocalStorage, tmp_path: Path) -> None:
    first = write_subtask(storage, "run/chk-1", "0-0", 0, native(tmp_path / "db", s1=b"one", s2=b"two", m=b"12"))
    before = (tmp_path / "checkpoints/run/shared/db-s2").stat().st_ino
    second = write_subtask(
        storage,
        "run/chk-2",
        "0-0",
        0,
        native(tmp_path / "later", s2=b"two", s3=b"three", m=b"23"),
        known=shared_files(first),
    )
    assert (first.size, first.written, second.size, second.written) == (8, 8, 10, 7)
    assert (tmp_path / "checkpoints/run/shared/db-s2").stat().st_ino == before
    [back] = read_operators(storage, "run/chk-2", metadata(second))
    assert back.keyed is not None
    assert back.keyed.native is not None
    back.keyed.native.fetch("s2", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == b"two"


@pytest.mark.parametrize("alone", [False, True])
def test_what_was_read_can_be_written_again(storage: LocalStorage, tmp_path: Path, alone: bool) -> None:
    first = write_subtask(storage, "run/chk-1", "0-0", 0, native(tmp_path / "db", s1=b"one", m=b"12"))
    again = write_subtask(
        storage, "run/chk-2", "0-0", 0, read_operators(storage, "run/chk-1", metadata(first)), canonical=alone
    )
    assert (again.size, again.written) == (5, 5 if alone else 2)
    assert metadata(again).files() == ({"0-0.0", "0-0.1"} if alone else {"../shared/db-s1", "0-0.0"})
    storage.delete([f.name for f in storage.files("run/chk-1")])
    [back] = read_operators(storage, "run/chk-2", metadata(again))
    assert back.keyed is not None
    assert back.keyed.native is not None
    for name, content in (("s1", b"one"), ("m", b"12")):
        back.keyed.native.fetch(name, str(tmp_path / f"fetched-{name}"))
        assert (tmp_path / f"fetched-{name}").read_bytes() == content


# -- metadata -------------------------------------------------------------------------------------------------


def test_metadata_comes_back_and_is_readable_json(storage: LocalStorage) -> None:
    entry = write_subtask(storage, "chk-7", "0-1.state", 1, all_there_is())
    written = metadata(entry, written_by="0.1", properties={"next": [1, {"a": None}]})
    data = encode_metadata(written)
    assert decode_metadata(data, "x") == written
    shown = json.loads(data)
    assert (shown["format"], shown["version"]) == ("sluiceway-checkpoint", 1)
    content = shown["content"]
    assert (content["job_name"], content["checkpoint_id"], content["kind"]) == ("job", 7, "checkpoint")
    [vertex] = content["vertices"]
    assert [step["uid"] for step in vertex["steps"]] == ["source", "count"]
    keyed = vertex["subtasks"][0]["operators"][1]["keyed"]
    assert keyed["tables"][0] == {
        "name": "counts",
        "table": "value",
        "serializer": "msgspec",
        "version": 1,
        "type": "int",
        "expires": True,
        "kind": "reducing",
        "ttl_ms": 5000,
    }
    assert [group[0] for group in keyed["groups"]] == [1, 3]


def test_a_later_field_is_left_alone() -> None:
    data = encode_metadata(metadata())
    import zlib

    content = json.loads(data)["content"] | {"mood": "good"}
    raw = json.dumps(content).encode()
    envelope = b'{"format": "sluiceway-checkpoint", "version": 1, "crc32": %d, "content": %s}'
    assert decode_metadata(envelope % (zlib.crc32(raw), raw), "x") == metadata()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d[:-20], r"there/metadata\.json is not the metadata of a checkpoint, or it is damaged"),
        (lambda d: b"", r"there/metadata\.json is not the metadata of a checkpoint, or it is damaged"),
        (
            lambda d: d.replace(b'"job"', b'"jab"'),
            r"metadata\.json is damaged: its checksum is \d+, \d+ was written",
        ),
        (
            lambda d: d.replace(b'"version":1', b'"version":4', 1),
            "written by a newer Sluiceway: it is of version 4",
        ),
        (lambda d: d.replace(b"sluiceway-checkpoint", b"other"), "is of format 'other'"),
    ],
)
def test_damaged_metadata_is_refused(change: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        decode_metadata(change(encode_metadata(metadata())), "there/metadata.json")


def test_a_place_without_a_checkpoint_is_named(storage: LocalStorage) -> None:
    with pytest.raises(CheckpointError, match=r"no complete checkpoint in .*/run/chk-3: it has no metadata\.json"):
        load_metadata(storage, "run/chk-3")
    with pytest.raises(CheckpointError, match=r"no complete checkpoint in .*/checkpoints: it has no"):
        load_metadata(storage, "")


@pytest.mark.parametrize(
    ("location", "split"),
    [
        ("/ckpts/run/chk-1", ("/ckpts/run", "chk-1")),
        ("/ckpts/run/chk-1/", ("/ckpts/run", "chk-1")),
        ("/ckpts/run/chk-1/metadata.json", ("/ckpts/run", "chk-1")),
        ("chk-1", (".", "chk-1")),
        ("/chk-1", ("/", "chk-1")),
        ("s3://bucket/run/chk-1", ("s3://bucket/run", "chk-1")),
        ("file:///run/chk-1", ("file:///run", "chk-1")),
    ],
)
def test_a_location_is_split(location: str, split: tuple[str, str]) -> None:
    assert split_location(location) == split


# -- damage ---------------------------------------------------------------------------------------------------


def touched(snapshots: tuple[OperatorSnapshot, ...]) -> None:
    """Read everything."""
    for snapshot in snapshots:
        if snapshot.keyed is not None:
            dict(snapshot.keyed.groups)


def test_every_damaged_byte_of_state_is_found(storage: LocalStorage, tmp_path: Path) -> None:
    entry = write_subtask(storage, "chk-1", "0-0.state", 0, all_there_is())
    found = metadata(entry)
    path = tmp_path / "checkpoints/chk-1/0-0.state"
    data = path.read_bytes()
    begin = len(b"sluiceway state 1\n")
    for place in range(begin, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"chk-1/0-0\.state is damaged: the checksum of the \d+ bytes"):
            touched(read_operators(storage, "chk-1", found))
    for size in range(begin, len(data), 11):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"chk-1/0-0\.state is damaged: it ends after \d+ of the \d+"):
            touched(read_operators(storage, "chk-1", found))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*chk-1/0-0\.state: No such file"):
        touched(read_operators(storage, "chk-1", found))
    path.write_bytes(data)
    touched(read_operators(storage, "chk-1", found))


def test_a_damaged_file_of_a_backend_is_found(storage: LocalStorage, tmp_path: Path) -> None:
    entry = write_subtask(storage, "run/chk-1", "0-0", 0, native(tmp_path / "db", s1=b"one"))
    (tmp_path / "db/s1").unlink()
    (tmp_path / "checkpoints/run/shared/db-s1").write_bytes(b"eno")
    [back] = read_operators(storage, "run/chk-1", metadata(entry))
    assert back.keyed is not None
    assert back.keyed.native is not None
    with pytest.raises(CheckpointError, match="shared/db-s1 is damaged: 3 bytes with checksum"):
        back.keyed.native.fetch("s1", str(tmp_path / "fetched"))


def test_state_of_a_class_that_is_gone_names_the_file(storage: LocalStorage) -> None:
    entry = write_subtask(storage, "chk-1", "0-0", 0, [OperatorSnapshot("s", splits=(Split("a", 1),))])
    kept = globals().pop("Split")
    try:
        with pytest.raises(CheckpointError, match=r"chk-1/0-0: .*cannot be unpickled.*Split"):
            read_operators(storage, "chk-1", metadata(entry))
    finally:
        globals()["Split"] = kept


def test_bytes_that_are_no_entry_are_refused() -> None:
    with pytest.raises(SerializationError, match="no entry of a subtask"):
        decode_subtask(b"\x93")


# -- a checkpoint is there when its metadata is there -----------------------------------------------------------


class Dying(Exception):
    pass


class DyingStorage(CheckpointStorage):
    """Does so many calls that change something, and then no more."""

    def __init__(self, inner: LocalStorage, calls: int) -> None:
        self.location = inner.location
        self.inner = inner
        self.calls = calls

    def _count(self) -> None:
        if not self.calls:
            raise Dying
        self.calls -= 1

    def write(self, name: str, parts: Any) -> int:
        self._count()
        return self.inner.write(name, parts)

    def put_file(self, name: str, path: str) -> int:
        self._count()
        return self.inner.put_file(name, path)

    def delete(self, names: Any) -> None:
        for name in names:
            self._count()
            self.inner.delete([name])

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return self.inner.read(name, offset, size)

    def files(self, directory: str = "") -> Any:
        return self.inner.files(directory)


def checkpoint(storage: CheckpointStorage, id_: int, place: Path, known: Any, **contents: bytes) -> SubtaskEntry:
    """Write a checkpoint of two subtasks, complete it, keep one."""
    run = CheckpointDirectory(storage, "run")
    directory = run.directory(id_)
    first = write_subtask(storage, directory, "0-0", 0, native(place, **contents), known=known)
    second = write_subtask(storage, directory, "0-1", 1, all_there_is())
    sections = write_enumerators(storage, directory, {"source": id_})
    run.complete(metadata(first, second, id_=id_, enumerators=sections))
    run.retain(1)
    return first


@pytest.mark.parametrize("calls", range(12))
def test_whenever_a_job_manager_dies_there_is_one_good_checkpoint(tmp_path: Path, calls: int) -> None:
    inner = LocalStorage(str(tmp_path / "checkpoints"))
    first = checkpoint(inner, 1, tmp_path / "db1", {}, s1=b"one", s2=b"two", m=b"12")
    died = False
    try:
        later = DyingStorage(inner, calls)
        checkpoint(later, 2, tmp_path / "db2", shared_files(first), s2=b"two", s3=b"3", m=b"23")
    except Dying:
        died = True
    assert died == (calls < 10)
    run = CheckpointDirectory(inner, "run")
    ids = run.ids()
    assert ids in ([1], [1, 2], [2])
    for id_ in ids:
        found = run.load(id_)
        touched(tuple(s for s in read_operators(inner, run.directory(id_), found) if s.uid != "count"))
        assert read_enumerators(inner, run.directory(id_), found) == {"source": id_}
        for snapshot in read_operators(inner, run.directory(id_), found):
            if snapshot.keyed is not None and snapshot.keyed.native is not None:
                for file in snapshot.keyed.native.files:
                    snapshot.keyed.native.fetch(file.name, str(tmp_path / "fetched"))
                    (tmp_path / "fetched").unlink()
    # Whatever was left over goes, and nothing else.
    run.retain(1)
    run.collect(now_ms=1 << 50, older_than_ms=0)
    needed = {
        join(run.directory(id_), name) for id_ in run.ids() for name in (*run.load(id_).files(), "metadata.json")
    }
    assert {file.name for file in inner.files()} == needed
