"""Raw state: bytes that functions write themselves, by chunk and by key group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.keygroups import key_group
from sluiceway.testing import OperatorHarness

GROUPS = 16
KEYS = [f"key {n}" for n in range(60)]


class Raw(sw.KeyedProcessFunction[str, str, tuple], sw.CheckpointedFunction):
    """Counts records by key, in a dict of its own, which is written by key group; keeps all records as chunks."""

    def initialize_state(self, context):
        self.seen = [chunk.decode() for chunk in context.raw_operator_state]
        self.counts = {}
        for group, stream in context.raw_keyed_state.items():
            for line in stream.decode().splitlines():
                key, count = json.loads(line)
                assert key_group(key, GROUPS) == group
                self.counts[key] = count

    def snapshot_state(self, context):
        for value in self.seen:
            context.raw_operator_state.write(value.encode())
        for key, count in self.counts.items():
            group = key_group(key, GROUPS)
            start, end = context.raw_keyed_state.key_groups
            assert start <= group < end, "a key of another subtask"
            context.raw_keyed_state.write(group, json.dumps([key, count]).encode() + b"\n")

    def process_element(self, value, ctx):
        self.seen.append(value)
        self.counts[value] = self.counts.get(value, 0) + 1
        yield value, self.counts[value]


class Deaf(Raw):
    """Neither reads raw state nor writes any."""

    def initialize_state(self, context):
        self.seen, self.counts = [], {}

    def snapshot_state(self, context):
        pass


def harness(parallelism, restored=None, function=Raw, **settings):
    return OperatorHarness(
        lambda keys: keys.key_by(lambda key: key).process(function()).uid("raw"),
        parallelism=parallelism,
        max_parallelism=GROUPS,
        restored=restored,
        **settings,
    )


def run(subject):
    found = []
    for key in KEYS:
        found += subject.process(key)
    return sorted(found)


def functions(subject):
    return [subtask.operators[0]._fn for subtask in subject._subtasks]


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
def test_raw_state_comes_back_at_any_parallelism(backend):
    snapshot = None
    for round_, parallelism in enumerate((2, 2, 5, 1, 3), start=1):
        with harness(parallelism, snapshot, state_backend=backend) as subject:
            before = [value for function in functions(subject) for value in function.seen]
            assert sorted(before) == sorted(KEYS * (round_ - 1)), "each chunk goes to one subtask"
            assert run(subject) == sorted((key, round_) for key in KEYS)
            snapshot = subject.snapshot()


def test_chunks_stay_where_they_were_at_the_same_parallelism():
    with harness(3) as subject:
        run(subject)
        snapshot = subject.snapshot()
        before = [function.seen for function in functions(subject)]
    with harness(3, snapshot) as subject:
        assert [function.seen for function in functions(subject)] == before


def test_raw_state_that_no_function_reads_is_kept():
    with harness(2) as subject:
        run(subject)
        snapshot = subject.snapshot()
    for parallelism in (3, 2):
        with harness(parallelism, snapshot, Deaf) as subject:
            snapshot = subject.snapshot()
    with harness(1, snapshot) as subject:
        assert run(subject) == sorted((key, 2) for key in KEYS)


def test_what_was_read_and_is_not_written_again_is_gone():
    class Forgetful(Raw):
        def snapshot_state(self, context):
            pass

    with harness(2) as subject:
        run(subject)
        snapshot = subject.snapshot()
    with harness(2, snapshot, Forgetful) as subject:
        snapshot = subject.snapshot()
    with harness(2, snapshot) as subject:
        assert [function.counts for function in functions(subject)] == [{}, {}]


def test_a_key_group_of_another_subtask_is_refused():
    class Astray(Raw):
        def snapshot_state(self, context):
            context.raw_keyed_state.write(GROUPS - 1, b"")

    refused = pytest.raises(StateError, match="written for key group 15, and this subtask has the groups 0 to 7")
    with harness(2, function=Astray) as subject, refused:
        subject.snapshot()


class Unkeyed(sw.MapFunction[str, str], sw.CheckpointedFunction):
    reads = False

    def initialize_state(self, context):
        assert context.raw_operator_state == []
        if self.reads:
            context.raw_keyed_state  # noqa: B018

    def snapshot_state(self, context):
        context.raw_keyed_state.write(0, b"")

    def map(self, value):
        return value


class UnkeyedReading(Unkeyed):
    reads = True


def test_raw_keyed_state_takes_a_step_with_keys():
    message = "has no keys, and so no raw keyed state"
    with pytest.raises(StateError, match=message):
        OperatorHarness(lambda words: words.map(UnkeyedReading()))
    with OperatorHarness(lambda w: w.map(Unkeyed())) as subject, pytest.raises(StateError, match=message):
        subject.snapshot()


def test_raw_state_is_in_checkpoints_and_can_be_shown(tmp_path: Path):
    def flow(parallelism):
        pipeline = sw.Pipeline("raw", parallelism=parallelism)
        keys = pipeline.from_collection(KEYS).key_by(lambda key: key)
        found = keys.process(Raw()).uid("raw").set_max_parallelism(GROUPS).collect()
        return pipeline, found

    pipeline, _ = flow(2)
    pipeline.run(checkpoints=str(tmp_path), checkpoint_interval="1h", state_backend="memory")
    (last,) = tmp_path.glob("*/chk-*")
    rows = list(sw.read_state(str(last), uid="raw"))
    chunks = [row.value for row in rows if row.kind == "raw list"]
    assert sorted(chunks) == sorted(key.encode() for key in KEYS)
    streams = [row.value for row in rows if row.kind == "raw keyed"]
    assert {group for group, _ in streams} == {key_group(key, GROUPS) for key in KEYS}
