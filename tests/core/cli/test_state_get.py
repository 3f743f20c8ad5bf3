"""``sluiceway state get``: what one key has, in a checkpoint and in the task of a job that runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from sluiceway import exit_codes
from sluiceway.cli.app import app
from sluiceway.errors import ConfigurationError, SluicewayError, StateError
from sluiceway.operators.keyed_state.queries import key_candidates
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.savepoint.lookup import find_live_state, find_state
from sluiceway.savepoint.writer import write
from sluiceway.state import MapStateDescriptor

PROGRAM = """
    import sluiceway as sw
    from datetime import timedelta
    from sluiceway.windows import TumblingProcessingTimeWindows

    class All(sw.KeyedProcessFunction):
        def open(self, context):
            self.value = context.get_state(sw.ValueStateDescriptor("value", int))
            self.odd = context.get_state(sw.ValueStateDescriptor("odd"))
            self.list = context.get_list_state(sw.ListStateDescriptor("list", int))
            self.map = context.get_map_state(sw.MapStateDescriptor("map", str, key_type=int))
            self.most = context.get_reducing_state(sw.ReducingStateDescriptor("most", int, reduce=max))
            self.mean = context.get_aggregating_state(
                sw.AggregatingStateDescriptor("mean", tuple[int, int], aggregate=Mean())
            )

        def process_element(self, value, ctx):
            key = ctx.get_current_key()
            if self.value.value() is None:
                self.odd.update({key})
                self.list.update([1, 2])
                self.map.put_all({1: "one", 2: "two"})
                self.most.add(7)
                self.most.add(3)
                self.mean.add(5)
            self.value.update(int(key[1:]) * 10)
            yield value

    class Mean(sw.AggregateFunction):
        def create_accumulator(self):
            return (0, 0)
        def add(self, value, accumulator):
            return (accumulator[0] + value, accumulator[1] + 1)
        def get_result(self, accumulator):
            return accumulator[0] / accumulator[1]
        def merge(self, a, b):
            return (a[0] + b[0], a[1] + b[1])

    def key_of(value: int) -> str:
        return f"k{value % 5}"

    flow = sw.Pipeline("states", parallelism=2)
    made = flow.generate(rate=500)
    made.key_by(key_of).process(All()).uid("all").for_each(lambda value: None)
    made.key_by(lambda v: v % 3).window(
        TumblingProcessingTimeWindows(timedelta(days=1000))
    ).reduce(lambda a, b: 9).uid("windows").for_each(lambda value: None)
"""


STUCK = """
    import os, threading
    import sluiceway as sw

    class Stuck(sw.KeyedProcessFunction):
        def open(self, context):
            self.value = context.get_state(sw.ValueStateDescriptor("value"))

        def process_element(self, value, ctx):
            open("stuck", "w").close()
            while not os.path.exists("go"):
                threading.Event().wait(0.01)
            self.value.update(value)

    flow = sw.Pipeline("stuck")
    numbers = flow.generate(rate=500)
    numbers.key_by(lambda value: value % 2).process(Stuck()).uid("stuck").for_each(lambda value: None)
"""


@pytest.fixture
def submitted(cluster: Any, place: Path) -> Any:
    cluster("cluster", "start", "--workers", "2", "--slots", "2")

    def submit(program: str) -> str:
        (place / "program.py").write_text(dedent(program))
        found = cluster("submit", "program.py", "--checkpoint-interval", "200ms")
        assert found.returncode == 0, found.stderr
        return str(found.stdout.strip())

    return submit


def has_all(job: str) -> bool:
    """Whether the last checkpoint has all keys; then so have the tasks."""
    with ClusterClient() as client:
        try:
            place = client.latest_checkpoint(job)
            for key in ("k0", "k1", "k2", "k3", "k4"):
                find_state(place, "all", "value", key)
                find_live_state(client, job, "all", "value", key)
            for key in ("0", "1", "2"):
                find_state(place, "windows", "windows: reduced", key)
        except SluicewayError:
            return False
    return True


@pytest.mark.slow
def test_the_state_of_a_key_of_a_running_job(cluster: Any, submitted: Any) -> None:
    job = submitted(PROGRAM)
    cluster.until(lambda: has_all(job))
    # The names of steps do for their uids.
    by_name = cluster("state", "get", job, "--uid", "process(All)", "--state", "most", "--key", "k1")
    assert by_name.stdout == "7\n"
    told = cluster("state", "size", job, "--uid", "process(All)")
    assert told.returncode == 0, told.stderr
    sizes = told.stdout.splitlines()
    assert sizes[0].split()[:3] == ["STEP", "UID", "STATE"]
    assert {tuple(row.split()[:2]) for row in sizes[1:]} == {("process(All)", "all")}

    def get(*arguments: str) -> Any:
        found = cluster("state", "get", "states", "--uid", "all", *arguments)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    for live in ([], ["--live"]):
        assert get("--state", "value", "--key", "k3", *live) == 30
        assert get("--state", "value", "--key", '"k4"', *live) == 40
        assert get("--state", "list", "--key", "k1", *live) == [1, 2]
        assert get("--state", "map", "--key", "k1", *live) == [[1, "one"], [2, "two"]]
        assert get("--state", "map", "--key", "k1", "--map-key", "2", *live) == "two"
        assert get("--state", "most", "--key", "k1", *live) == 7
        assert get("--state", "mean", "--key", "k1", *live) == [5, 1]
        assert get("--state", "odd", "--key", "k2", *live) == ["k2"]
        as_json = get("--state", "value", "--key", "k2", "--json", *live)
        assert as_json == {
            "uid": "all", "state": "value", "kind": "value", "key": "k2", "namespace": [], "value": 20,
            "touched_ms": None,
        }  # fmt: skip
        for wrong, said in (
            (["--uid", "al", "--state", "value", "--key", "k1"], "Did you mean 'all'"),
            (["--uid", "all", "--state", "valu", "--key", "k1"], "Did you mean 'value'"),
            (["--uid", "all", "--state", "value", "--key", "k9"], "the key 'k9' has no state 'value'"),
            (
                ["--uid", "all", "--state", "map", "--key", "k1", "--map-key", "3"],
                "no entry '3'; others are '1', '2'",
            ),
            (["--uid", "all", "--state", "value", "--key", "k1", "--map-key", "3"], "not a map"),
        ):
            found = cluster("state", "get", job, *wrong, *live)
            assert found.returncode == exit_codes.USAGE
            assert said in found.stderr

        of_windows = ["state", "get", job, "--uid", "windows", "--state", "windows: reduced", "--key", "1", *live]
        found = cluster(*of_windows)
        header, row = found.stdout.splitlines()
        assert header.split() == ["NAMESPACE", "VALUE"]
        assert row.endswith("]  9")
        namespace = row.removesuffix("  9").strip()
        assert cluster(*of_windows, "--namespace", namespace).stdout == found.stdout
        assert "the key '1' has no state" in cluster(*of_windows, "--namespace", "[0, 1]").stderr
        assert "is not valid JSON" in cluster(*of_windows, "--namespace", "today").stderr


@pytest.mark.slow
def test_a_task_that_does_not_answer_is_told_of(cluster: Any, submitted: Any, place: Path) -> None:
    job = submitted(STUCK)
    cluster.until((place / "stuck").exists)
    get = ["state", "get", job, "--uid", "stuck", "--state", "value", "--key"]
    found = cluster(*get, "0", "--live", "--timeout", "300ms")
    assert found.returncode == exit_codes.OUTSIDE
    assert "has not answered within 0.3 s" in found.stderr
    found = cluster(*get, "0")
    assert found.returncode == exit_codes.OUTSIDE
    assert "has completed no checkpoint yet: only the live state of its running tasks can be read" in found.stderr
    assert "is not of the type" not in found.stderr
    (place / "go").touch()
    cluster.until(lambda: cluster(*get, "1", "--live").returncode == 0)
    cluster("cancel", job)
    cluster.ended(job)
    found = cluster(*get, "0", "--live")
    assert found.returncode == exit_codes.USAGE
    assert "is canceled: read what it has left from its last checkpoint" in found.stderr


def test_what_a_text_can_stand_for() -> None:
    assert key_candidates("7") == [7, "7"]
    assert key_candidates('"7"') == ["7", '"7"']
    assert key_candidates("ann") == ["ann"]
    assert key_candidates('["a", [1, null]]') == [("a", (1, None)), '["a", [1, null]]']
    assert key_candidates('{"a": 1}') == ['{"a": 1}']
    assert key_candidates("7", str) == ["7"]
    assert key_candidates('"7"', str) == ["7", '"7"']
    assert key_candidates("7", int) == [7]
    assert key_candidates("7", float) == [7]
    with pytest.raises(StateError, match="'ann' is not of the type of keys here, int"):
        key_candidates("ann", int)


def test_a_place_without_such_a_step_says_what_there_is(cluster: Any, place: Path) -> None:
    found = cluster("state", "get", "./nowhere", "--uid", "a", "--state", "b", "--key", "c")
    assert found.returncode != 0
    assert "nowhere" in found.stderr
    found = cluster("state", "get", "./nowhere", "--uid", "a", "--state", "b", "--key", "c", "--live")
    assert "--live takes a job of the cluster" in found.stderr
    found = cluster("state", "get", "job", "--uid", "a", "--state", "b", "--key", "c", "--live")
    assert "no cluster is running" in found.stderr
    for command in (("get", "chk-7", "--uid", "a", "--state", "b", "--key", "c"), ("size", "chk-7")):
        found = cluster("state", *command)
        assert "there is no directory 'chk-7', and for a job of that name, no cluster is running" in found.stderr


def test_text_that_is_nested_too_deeply_is_no_json(tmp_path: Path) -> None:
    deep = "[" * 100_000  # Python 3.13 decodes some thousands
    assert key_candidates(deep) == [deep]
    assert key_candidates(deep + "]" * 100_000) == [deep + "]" * 100_000]
    with write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", MapStateDescriptor("map"), [("k", "a", 1)], key=0, map_key=1, value=2)
    place = savepoint.location
    with pytest.raises(StateError, match=r"has no state 'map' in step 'op'; others are 'k'$"):
        find_state(place, "op", "map", deep)
    with pytest.raises(StateError, match=r"has no entry '\[+'; others are 'a'$"):
        find_state(place, "op", "map", "k", map_key=deep)
    with pytest.raises(ConfigurationError, match=r"is not valid JSON \(it is nested too deeply\)"):
        find_state(place, "op", "map", "k", namespace=deep)


@dataclass(frozen=True)
class Spot:
    x: int


class Ware:
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_map_whose_keys_are_objects(tmp_path: Path) -> None:
    with write(str(tmp_path / "made")) as savepoint:
        spots = [("k", Spot(1), 5), ("k", Spot(2), 6)]
        savepoint.put("op", MapStateDescriptor("spots", int, key_type=Spot), spots, key=0, map_key=1, value=2)
        wares = [("k", "a", Ware("a")), ("k", "b", Ware("b"))]
        savepoint.put("op", MapStateDescriptor("wares"), wares, key=0, map_key=1, value=2)
    place = savepoint.location
    assert find_state(place, "op", "spots", "k")[0].value == [({"x": 1}, 5), ({"x": 2}, 6)]
    assert find_state(place, "op", "spots", "k", map_key='{"x": 2}')[0].value == 6
    with pytest.raises(StateError, match=r"has no entry 'y'; others are \"\{'x': 1\}\""):
        find_state(place, "op", "spots", "k", map_key="y")
    assert len(find_state(place, "op", "wares", "k")[0].value) == 2
    shown = CliRunner().invoke(app, ["state", "get", place, "--uid", "op", "--state", "spots", "--key", "k"])
    assert (shown.exit_code, shown.output) == (0, '[[{"x": 1}, 5], [{"x": 2}, 6]]\n')
