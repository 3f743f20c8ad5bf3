"""``sluiceway checkpoints`` and ``sluiceway state``, and state as data."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import (
    CHECKPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    NativeFileEntry,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    write_subtask,
)
from sluiceway.checkpoint.metadata import KeyedEntry, NativeEntry, OperatorEntry
from sluiceway.checkpoint.offline_reader import Opaque, StateRow
from sluiceway.clock import VirtualClock
from sluiceway.errors import CheckpointError, UnknownNameError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend, StateDescriptor
from sluiceway_filesystem._local import LocalStorage
from sluiceway_memory._backend import MemoryStateBackend
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions


class Visit:
    """A class of the job's."""

    def __init__(self, page: str) -> None:
        self.page = page

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Visit) and other.page == self.page

    __hash__ = None  # type: ignore[assignment]


COUNT = sw.ValueStateDescriptor("count", int)
PAGES = sw.MapStateDescriptor("pages", int, key_type=str)
SEEN = sw.ListStateDescriptor("seen", str, ttl=sw.StateTtlConfig("1h"))
ANY = sw.ValueStateDescriptor("any")


def keyed(backend: StateBackend) -> KeyedStateBackend:
    made = backend.create_keyed(BackendContext("count", 0, KeyGroupRange(0, 128), 128))
    store = KeyedStateStore(made, VirtualClock(5_000))
    for number, name in enumerate(("ann", "bob")):
        store.current_key = name
        store.value_state(COUNT).update(number)
        store.value_state(COUNT, (10, 20)).update(number + 100)
        store.map_state(PAGES).put("/", number)
        store.map_state(PAGES).put("/about", 7)
        store.list_state(SEEN).add_all(["x", "y"])
    store.value_state(ANY).update(Visit("/"))
    return made


def other() -> OperatorSnapshot:
    offsets = ListSnapshot("offsets", ListMode.SPLIT, "msgspec", 1, "int", 0, 1, (b"\x05", b"\x06"))
    return OperatorSnapshot(
        "rules", lists=(offsets,), broadcast={"rules": {"a": {"limit": 3}}}, splits=(("f", 3),)
    )


def write(
    place: Path, id_: int, snapshots: list[OperatorSnapshot], known: Any = None, time_ms: int = 1_000
) -> SubtaskEntry:
    run = CheckpointDirectory(LocalStorage(str(place)), "run")
    entry = write_subtask(run.storage, run.directory(id_), "0-0.state", 0, snapshots, known=known)
    steps = tuple(StepEntry(uid=snapshot.uid, name=snapshot.uid) for snapshot in snapshots)
    vertex = VertexEntry(
        uid="count", name="count -> rules", parallelism=1, max_parallelism=128, steps=steps, subtasks=(entry,)
    )
    run.complete(
        CheckpointMetadata(
            job_name="visits",
            job_id="run",
            checkpoint_id=id_,
            kind=CHECKPOINT,
            triggered_ms=time_ms,
            completed_ms=time_ms + 250,
            vertices=(vertex,),
        )
    )
    return entry


@pytest.fixture(params=["memory", "rocksdb"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint with all sorts of state."""
    rocks = RocksDBStateBackend(RocksDBOptions(str(tmp_path / "db")))
    backend = keyed(MemoryStateBackend() if request.param == "memory" else rocks)
    write(tmp_path / "place", 1, [OperatorSnapshot("count", keyed=backend.snapshot()), other()])
    backend.close()
    return tmp_path / "place/run/chk-1"


# -- state as data --------------------------------------------------------------------------------------------


def test_state_is_read_without_the_jobs_code(checkpoint: Path) -> None:
    rows = list(sw.read_state(str(checkpoint)))
    assert all(0 <= row.key_group < 128 for row in rows if row.uid == "count")  # type: ignore[operator]
    found = {(row.state, row.namespace, row.key, row.name): row.value for row in rows if row.uid == "count"}
    opaque = found.pop(("any", (), "bob", None))
    assert found == {
        ("count", (), "ann", None): 0,
        ("count", (), "bob", None): 1,
        ("count", (10, 20), "ann", None): 100,
        ("count", (10, 20), "bob", None): 101,
        ("pages", (), "ann", "/"): 0,
        ("pages", (), "ann", "/about"): 7,
        ("pages", (), "bob", "/"): 1,
        ("pages", (), "bob", "/about"): 7,
        ("seen", (), "ann", None): ["x", "y"],
        ("seen", (), "bob", None): ["x", "y"],
    }
    assert isinstance(opaque, Opaque)
    assert repr(opaque) == f"<pickle, {len(opaque.data)} bytes>"
    assert {row.state: (row.kind, row.touched_ms) for row in rows if row.uid == "count"} == {
        "count": ("value", None),
        "pages": ("map", None),
        "seen": ("list", 5_000),
        "any": ("value", None),
    }
    assert [row for row in rows if row.uid == "rules"] == [
        StateRow("rules", "offsets", "operator list", 0, value=5),
        StateRow("rules", "offsets", "operator list", 0, value=6),
        StateRow("rules", "rules", "broadcast", 0, name="a", value={"limit": 3}),
        StateRow("rules", "splits", "split", 0, value=("f", 3)),
    ]


def test_state_is_unpickled_where_it_is_trusted(checkpoint: Path) -> None:
    [row] = sw.read_state(str(checkpoint / "metadata.json"), state="any", trusted=True)
    assert (row.key, row.value) == ("bob", Visit("/"))


def test_nothing_that_is_not_trusted_runs(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "hacked"),)

    snapshot = OperatorSnapshot("u", splits=(Evil(),))
    write(tmp_path, 1, [snapshot])
    [row] = sw.read_state(str(tmp_path / "run/chk-1"))
    assert isinstance(row.value, Opaque)
    assert not (tmp_path / "hacked").exists()
    pickle.loads(row.value.data[1:] if row.value.data[:1] == b"\xc1" else row.value.data)
    assert (tmp_path / "hacked").exists(), "it would have"


def test_state_becomes_an_arrow_table(checkpoint: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = sw.read_state(str(checkpoint), uid="count", state="count").to_arrow()
    assert table.schema.field("value").type == pyarrow.int64()
    assert sorted(table.column("value").to_pylist()) == [0, 1, 100, 101]
    mixed = sw.read_state(str(checkpoint)).to_arrow()
    assert mixed.schema.field("value").type == pyarrow.string()
    assert '["x", "y"]' in mixed.column("value").to_pylist()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"uid": "nobody"}, r"no step with the uid 'nobody' in the checkpoint\. Known: 'count', 'rules'"),
        ({"state": "cuont"}, r"no state 'cuont' in the checkpoint\. Did you mean 'count'\?"),
    ],
)
def test_what_is_not_there_is_named(checkpoint: Path, what: dict[str, str], says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        list(sw.read_state(str(checkpoint), **what))


def test_a_place_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"no complete checkpoint in {tmp_path}"):
        sw.read_state(str(tmp_path))


# -- commands -------------------------------------------------------------------------------------------------


def test_state_show(checkpoint: Path, sluiceway: Any) -> None:
    shown = sluiceway("state", "show", str(checkpoint), "--state", "count")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["UID", "STATE", "KEY", "NAMESPACE", "ENTRY", "VALUE"]
    assert sorted(lines[1:]) == [
        ["count", "count", '"ann"', "-", "-", "0"],
        ["count", "count", '"ann"', "[10,", "20]", "-", "100"],
        ["count", "count", '"bob"', "-", "-", "1"],
        ["count", "count", '"bob"', "[10,", "20]", "-", "101"],
    ]
    shown = sluiceway("state", "show", str(checkpoint), "--uid", "rules", "--limit", "1", "--json")
    assert [json.loads(line)["value"] for line in shown.stdout.splitlines()] == [5]
    assert "--limit 0 shows all" in shown.stderr
    wrong = sluiceway("state", "show", str(checkpoint), "--uid", "x")
    assert wrong.exit_code == 2
    assert "with the uid 'x'" in wrong.stderr


def test_checkpoints_list_and_show(checkpoint: Path, sluiceway: Any) -> None:
    place = checkpoint.parents[1]
    write(place, 10, [other()], time_ms=90_000)
    listed = [line.split() for line in sluiceway("checkpoints", "list", str(place)).stdout.splitlines()]
    assert listed[0][:4] == ["JOB", "CHECKPOINT", "KIND", "COMPLETED"]
    assert [row[:6] for row in listed[1:]] == [
        ["visits", "1", "checkpoint", "1970-01-01", "00:00:01", "UTC"],
        ["visits", "10", "checkpoint", "1970-01-01", "00:01:30", "UTC"],
    ]
    facts = json.loads(sluiceway("checkpoints", "list", str(place), "--json").stdout)
    assert [(fact["checkpoint"], fact["path"]) for fact in facts] == [
        (1, str(checkpoint)),
        (10, str(place / "run/chk-10")),
    ]
    assert facts[0]["size"] == facts[0]["written"] > 0
    shown = sluiceway("checkpoints", "show", str(checkpoint)).stdout
    assert "checkpoint 1 of job 'visits'" in shown
    assert "count -> rules: 1 of 128" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["count", "pages", "map", "dict[str,", "int]", "msgspec", "1", "1"] in rows
    assert ["count", "seen", "list,", "for", "3600000", "ms", "list[str]", "msgspec", "1", "1"] in rows
    assert ["rules", "offsets", "operator", "list", "int", "msgspec", "1", "1"] in rows
    assert json.loads(sluiceway("checkpoints", "show", str(checkpoint), "--json").stdout)["job_name"] == "visits"


def test_an_empty_place_is_no_error(tmp_path: Path, sluiceway: Any) -> None:
    assert "no complete checkpoint" in sluiceway("checkpoints", "list", str(tmp_path / "nowhere")).stdout


@pytest.mark.parametrize("command", ["list", "history"])
def test_a_damaged_checkpoint_does_not_hide_the_others(sluiceway: Any, tmp_path: Path, command: str) -> None:
    for number in (1, 2):
        write(tmp_path, number, [other()])
    one, two = (tmp_path / f"run/chk-{number}/metadata.json" for number in (1, 2))
    one.write_text("{")
    result = sluiceway("checkpoints", command, str(tmp_path), "--json")
    facts = json.loads(result.stdout)
    shown = facts if command == "list" else facts[0]["checkpoints"]
    assert (result.exit_code, [each["checkpoint"] for each in shown]) == (0, [2])
    assert result.stderr.startswith(f"warning: {one} is not the metadata of a checkpoint, or it is damaged: ")
    two.write_text("{")
    result = sluiceway("checkpoints", command, str(tmp_path))
    assert (result.exit_code, "error: " in result.stderr) == (3, True)
    assert sluiceway("checkpoints", "show", str(tmp_path / "nowhere")).exit_code == 3


def with_states(*descriptors: StateDescriptor) -> OperatorSnapshot:
    backend = MemoryStateBackend().create_keyed(BackendContext("count", 0, KeyGroupRange(0, 128), 128))
    for descriptor in descriptors:
        backend.table(descriptor)
    return OperatorSnapshot("count", keyed=backend.snapshot())


def test_checkpoints_diff(tmp_path: Path, sluiceway: Any) -> None:
    write(tmp_path, 1, [with_states(COUNT, PAGES)])
    write(tmp_path, 2, [with_states(sw.ValueStateDescriptor("count", str), SEEN)])
    paths = [str(tmp_path / f"run/chk-{i}") for i in (1, 2)]
    changes = json.loads(sluiceway("checkpoints", "diff", *paths, "--json").stdout)
    assert [(c["what"], c["uid"], c["state"], c["old"], c["new"]) for c in changes] == [
        ("changed", "count", "count", "value, int, msgspec 1", "value, str, msgspec 1"),
        ("removed", "count", "pages", "map, dict[str, int], msgspec 1", "-"),
        ("added", "count", "seen", "-", "list, for 3600000 ms, list[str], msgspec 1"),
    ]
    assert "changed" in sluiceway("checkpoints", "diff", *paths).stdout
    assert "the same states" in sluiceway("checkpoints", "diff", paths[0], paths[0]).stdout


def test_checkpoints_delete_and_gc(checkpoint: Path, sluiceway: Any) -> None:
    place = checkpoint.parents[1]
    write(place, 2, [other()])
    left = place / "run/chk-3/0-0.state"
    left.parent.mkdir()
    left.write_text("left over")
    deleted = sluiceway("checkpoints", "delete", str(checkpoint))
    assert (deleted.exit_code, checkpoint.exists()) == (0, False)
    would = sluiceway("checkpoints", "gc", str(place), "--older-than", "0", "--dry-run")
    assert would.stdout.splitlines() == ["would delete run/chk-3/0-0.state (9 B)", "1 files, 9 B."]
    young = sluiceway("checkpoints", "gc", str(place))
    assert young.stdout == "0 files, 0 B; 1 more may be of a checkpoint that is under way.\n"
    done = json.loads(sluiceway("checkpoints", "gc", str(place), "--older-than", "0", "--json").stdout)
    assert done == {
        "deleted": ["run/chk-3/0-0.state"],
        "orphans": ["run/chk-3/0-0.state"],
        "too_young": [],
        "size": 9,
    }
    assert not left.exists()
    assert (place / "run/chk-2/metadata.json").exists()
    assert sluiceway("checkpoints", "gc", str(place), "--older-than", "soon").exit_code == 2


@pytest.mark.parametrize("command", ["gc", "prune"])
def test_a_place_without_files_is_told(command: str, checkpoint: Path, sluiceway: Any) -> None:
    mistyped = checkpoint.parents[1] / "runn"
    cleaned = sluiceway("checkpoints", command, str(mistyped), "--json")
    assert cleaned.stderr.startswith(f"warning: there are no files in {mistyped}: ")
    assert (cleaned.exit_code, json.loads(cleaned.stdout)["deleted"]) == (0, [])
    assert not mistyped.exists()
    assert sluiceway("checkpoints", command, str(checkpoint.parents[1])).stderr == ""


def test_files_that_the_newest_checkpoint_shares_are_left_to_gc(tmp_path: Path, sluiceway: Any) -> None:
    run = CheckpointDirectory(LocalStorage(str(tmp_path)), "run")
    for id_, name in enumerate("ab", 1):
        run.storage.write(f"run/shared/{name}", (b"x",))
        file = NativeFileEntry(name=name, file=f"../shared/{name}", size=1, crc32=0, shared=True)
        state = KeyedEntry(tables=(), native=NativeEntry(format="rocks 1", start=0, end=1, files=(file,)))
        subtask = SubtaskEntry(index=0, operators=(OperatorEntry(uid="u", keyed=state),))
        vertex = VertexEntry(uid="u", name="u", parallelism=1, max_parallelism=1, subtasks=(subtask,))
        run.complete(
            CheckpointMetadata(
                job_name="job",
                job_id="run",
                checkpoint_id=id_,
                kind=CHECKPOINT,
                triggered_ms=0,
                completed_ms=id_,
                vertices=(vertex,),
            )
        )
    for id_ in (1, 2):
        deleted = sluiceway("checkpoints", "delete", str(tmp_path / f"run/chk-{id_}"))
        assert (deleted.exit_code, os.listdir(tmp_path / "run/shared")) == (0, ["b"]), deleted.stderr


def test_a_checkpoint_that_was_moved_is_not_deleted(checkpoint: Path, sluiceway: Any) -> None:
    moved = checkpoint.rename(checkpoint.parent / "kept")
    refused = sluiceway("checkpoints", "delete", str(moved))
    assert refused.exit_code == 2
    assert "has checkpoint 1 and is not called chk-1" in refused.stderr
    assert moved.exists()


FAILS = """
    import os

    class Unwritable:
        def __reduce__(self):
            open("failed", "w").close()
            raise RuntimeError("not this time")

    class Keeps(sw.KeyedProcessFunction[int, int, int]):
        def open(self, context):
            self.kept = context.get_state(sw.ValueStateDescriptor("kept"))

        def process_element(self, value, ctx):
            self.kept.update(value if os.path.exists("failed") else Unwritable())
            yield value

    def numbers(ended):
        yield 0
        while not os.path.exists("failed"):
            ended.wait(0.01)
        yield 1

    flow = sw.Pipeline("numbers")
    numbers = flow.from_function(numbers, blocking=True).uid("numbers").key_by(lambda n: 0)
    numbers.process(Keeps()).uid("kept").for_each(lambda n: None).uid("out")
"""


def test_a_directory_tells_how_the_checkpoints_went_also_those_that_failed(write: Any, sluiceway: Any) -> None:
    write("fails.py", FAILS)
    options = ("--checkpoint-interval", "20ms", "--checkpoints", "kept", "--checkpoint-tolerated-failures", "1000")
    assert sluiceway("run", *options, "--quiet", "fails.py").exit_code == 0
    shown = sluiceway("checkpoints", "kept", "--subtasks")
    assert shown.exit_code == 0, shown.stderr
    assert "(job 'numbers')" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines() if "checkpoint " in line]
    assert {row[2] for row in rows} == {"completed", "failed"}
    assert "not this time" in shown.stdout
    assert "BEGAN AFTER" in shown.stdout
    (run,) = json.loads(sluiceway("checkpoints", "history", "kept", "--json").stdout)
    found = run["checkpoints"]
    assert [c["checkpoint"] for c in found] == list(range(found[0]["checkpoint"], found[-1]["checkpoint"] + 1))
    assert found[-1]["subtasks"]
    assert found[-1]["status"] == "completed"
    assert all(c["duration_ms"] is not None for c in found)


def test_a_name_is_a_job_s_or_a_directory_s_unless_it_is_nearly_a_command(sluiceway: Any, place: Path) -> None:
    told = sluiceway("checkpoints", "meters-1")
    assert "there is no directory 'meters-1', and for a job of that name, no cluster is running" in told.stderr
    wrong = sluiceway("checkpoints", "lsit")
    assert wrong.exit_code == 2
    assert "there is no command 'lsit'. Did you mean 'list'?" in wrong.stderr
    (place / "lists").mkdir()
    assert "there is no complete checkpoint in" in sluiceway("checkpoints", "lists").stderr
