"""``sluiceway diff OLD NEW``: what becomes of state when a pipeline changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluiceway.checkpoint import CheckpointMetadata, Section, decode_metadata, encode_metadata
from sluiceway.checkpoint.metadata import InFlightEntry

COUNT = """
    class Count(sw.KeyedProcessFunction[int, int, int]):
        def open(self, context):
            with open("opened", "a") as file:
                file.write("{name}")
            self.seen = context.get_state({descriptor})
            {more}

        def process_element(self, value, ctx):
            self.seen.update({update})
            yield value

    flow = sw.Pipeline("numbers"{pipeline})
    numbers = flow.from_collection(range(10)).uid("numbers").key_by(lambda n: n % 3)
    numbers.process(Count()).uid("{uid}").for_each(lambda n: None).uid("out")
"""
PLAIN = """
    flow = sw.Pipeline("numbers")
    numbers = flow.from_collection(range(10)).uid("numbers").key_by(lambda n: n % 3)
    numbers.{step}.uid("total").for_each(lambda n: None).uid("out")
"""


@pytest.fixture
def version(write: Callable[..., Path]) -> Callable[..., str]:
    """``version("new.py", descriptor=...)``: a version of the pipeline."""

    def make(name: str, **parts: str) -> str:
        default = {
            "name": name,
            "descriptor": 'sw.ValueStateDescriptor("seen", int)',
            "more": "",
            "update": "value",
            "pipeline": "",
            "uid": "counted",
        }
        write(name, COUNT.format(**{**default, **parts}))
        return name

    return make


@pytest.fixture
def kept(version: Callable[..., str], sluiceway: Any, place: Path) -> str:
    """A checkpoint of the first version."""
    flow = version("old.py")
    options = ("--checkpoint-interval", "1h", "--checkpoints", "kept", "--quiet")
    assert sluiceway("run", *options, flow).exit_code == 0
    (place / "opened").unlink()
    return "kept"


def changes(result: Any) -> list[tuple[str, str, str]]:
    """Of each state what becomes of it."""
    steps = json.loads(result.stdout)["steps"]
    return [(c["what"], s["uid"], c["name"]) for s in steps for c in s["states"]]


def test_types_of_states_are_compared_where_functions_may_be_opened(
    kept: str, version: Callable[..., str], sluiceway: Any, place: Path
) -> None:
    same = sluiceway("diff", kept, "old.py")
    assert same.exit_code == 0, same.stderr
    assert ["keeps", "counted"] in [line.split()[:2] for line in same.stdout.splitlines()]
    assert "not all states of step 'counted' are known: its function says that in open()" in same.stderr
    assert not (place / "opened").exists(), "nothing was called"
    asked = sluiceway("diff", kept, "old.py", "--open")
    assert asked.exit_code == 0, asked.stderr
    assert asked.stderr == ""
    assert (place / "opened").read_text() == "old.py"

    wider = version("wider.py", descriptor='sw.ValueStateDescriptor("seen", float)')
    result = sluiceway("diff", "--open", kept, wider)
    assert result.exit_code == 0, result.stderr
    assert "value of int -> value of float" in result.stdout
    assert "migrates  counted" in result.stdout

    other = version("other.py", descriptor='sw.ValueStateDescriptor("seen", list[str])')
    result = sluiceway("diff", "--open", kept, other)
    assert result.exit_code == 1
    assert "state 'seen' of operator 'counted' cannot be restored" in result.stderr
    assert "refused" in result.stdout
    assert sluiceway("run", "--from", kept, other).exit_code != 0, "so it is"

    more = version("more.py", more='context.get_list_state(sw.ListStateDescriptor("last", str))')
    assert ("new", "counted", "last") in changes(sluiceway("diff", "--open", "--json", kept, more))
    named = version("named.py", descriptor='sw.ValueStateDescriptor("first", int)')
    result = sluiceway("diff", "--open", "--json", kept, named)
    assert ("dropped", "counted", "seen") in changes(result)
    assert result.exit_code == 1
    assert "'seen' of step 'counted' would be lost: its function does not ask for it any more" in result.stderr
    later = version("later.py", descriptor='sw.ValueStateDescriptor("first", int)', more='self.later = "seen"')
    result = sluiceway("diff", "--open", "--json", kept, later)
    assert ("unused", "counted", "seen") in changes(result)
    assert result.exit_code == 0, "the function may ask for it later"


def test_descriptors_that_can_be_seen_are_compared_without_calling_anything(
    kept: str, write: Callable[..., Path], sluiceway: Any, place: Path
) -> None:
    write(
        "seen.py",
        'SEEN = sw.ValueStateDescriptor("seen", bytes)\n'
        + COUNT.replace("\n    ", "\n").format(
            name="", descriptor="SEEN", more="", update="b''", pipeline="", uid="counted"
        ),
    )
    result = sluiceway("diff", kept, "seen.py")
    assert result.exit_code == 1
    assert "the snapshot holds a value table of int" in result.stderr
    assert not (place / "opened").exists()


def test_a_function_that_cannot_be_opened_is_told_of(
    kept: str, version: Callable[..., str], sluiceway: Any
) -> None:
    broken = version("broken.py", more='raise OSError("no database here")')
    result = sluiceway("diff", "--open", kept, broken)
    assert result.exit_code == 0
    assert "not all states of step 'counted' are known: OSError: no database here" in result.stderr


def test_steps_come_and_go(kept: str, version: Callable[..., str], sluiceway: Any) -> None:
    renamed = version("renamed.py", uid="called otherwise")
    for old in (kept, "old.py"):
        result = sluiceway("diff", old, renamed, "--json")
        assert result.exit_code == 1
        assert "no step goes by 'counted': give its step that uid" in result.stderr
        steps = {s["uid"]: s["what"] for s in json.loads(result.stdout)["steps"]}
        assert steps["counted"] == "dropped"
        assert steps["called otherwise"] == "new"
        assert steps["numbers"] == "keeps"
        assert sluiceway("diff", "--allow-dropped-state", old, renamed).exit_code == 0
    groups = version("groups.py", pipeline=", max_parallelism=64")
    for old in (kept, "old.py"):
        result = sluiceway("diff", old, groups)
        assert result.exit_code == 1
        assert "saved in 128 key groups, and the job divides it into 64" in result.stderr


def test_a_step_that_becomes_another_kind_of_step_loses_its_state(
    write: Callable[..., Path], sluiceway: Any
) -> None:
    write("old.py", PLAIN.format(step="reduce(lambda a, b: a + b)"))
    write("new.py", PLAIN.format(step="count()"))
    assert sluiceway("diff", "old.py", "old.py").exit_code == 0
    result = sluiceway("diff", "old.py", "new.py")
    assert result.exit_code == 1
    assert (
        "state 'reduce' of step 'total' would be lost: what the step is now knows nothing of it" in result.stderr
    )


def test_uids_that_nobody_gave_are_warned_of(write: Callable[..., Path], sluiceway: Any) -> None:
    write("old.py", PLAIN.format(step="count()").replace('.uid("total")', ""))
    result = sluiceway("diff", "old.py", "old.py")
    assert result.exit_code == 0
    assert "these uids come from the shape of the pipeline and change with it" in result.stderr


def test_a_checkpoint_is_no_new_version(kept: str, sluiceway: Any) -> None:
    result = sluiceway("diff", "old.py", kept)
    assert result.exit_code == 2
    assert "kept is no pipeline: the checkpoint or savepoint comes first" in result.stderr
    assert "no complete checkpoint" in sluiceway("diff", "file:///nowhere", "old.py").stderr


def test_the_sink_of_dead_letters_keeps_its_state_though_it_had_another_uid(
    write: Callable[..., Path], sluiceway: Any, place: Path
) -> None:
    write("skips.py", PLAIN.format(step="map(lambda n: 1 // n).on_error('skip')"))
    letters = ("--checkpoint-interval", "1h", "--dead-letters", "letters")
    assert sluiceway("run", *letters, "--checkpoints", "kept", "--quiet", "skips.py").exit_code == 0
    (file,) = (place / "kept").rglob("metadata.json")
    today = msgspec.json.encode(decode_metadata(file.read_bytes(), "it"))
    earlier = today.replace(b'"uid":"dead letters"', b'"uid":"made of the steps before it"')
    assert earlier != today
    file.write_bytes(encode_metadata(msgspec.json.decode(earlier, type=CheckpointMetadata)))
    result = sluiceway("diff", *letters, "kept", "skips.py", "--json")
    assert result.exit_code == 0, result.stderr
    assert ("keeps", "dead letters", "output to commit") in changes(result)


def test_records_in_flight_on_an_edge_that_goes_are_told_of(
    kept: str, version: Callable[..., str], sluiceway: Any, place: Path
) -> None:
    (file,) = (place / kept).rglob("metadata.json")
    metadata = decode_metadata(file.read_bytes(), "it")
    (vertex,) = (v for v in metadata.vertices if v.uid == "counted")
    elements = Section(file="none.state", offset=0, size=0, crc32=0, count=1)
    some = InFlightEntry(
        source="numbers",
        target="counted",
        elements=elements,
        partitioner="hash",
        producer=0,
        consumer=0,
        consumers=1,
        max_parallelism=128,
        stage=1,
        serializer="msgspec",
        version=1,
    )
    subtasks = tuple(msgspec.structs.replace(s, in_flight=(some,)) for s in vertex.subtasks)
    vertices = tuple(
        msgspec.structs.replace(v, subtasks=subtasks) if v is vertex else v for v in metadata.vertices
    )
    file.write_bytes(encode_metadata(msgspec.structs.replace(metadata, vertices=vertices)))
    assert sluiceway("diff", kept, "old.py").exit_code == 0
    renamed = version("renamed.py", uid="called otherwise")
    result = sluiceway("diff", kept, renamed)
    assert result.exit_code == 1
    assert "the checkpoint was unaligned, and records were in flight" in result.stderr
    assert "an edge that the job does not have" in result.stderr
    assert sluiceway("diff", "--allow-dropped-state", kept, renamed).exit_code == 0
