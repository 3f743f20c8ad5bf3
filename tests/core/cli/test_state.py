"""``sluiceway state export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw

pytest.importorskip("pyarrow")


class Page:
    """A class of the job's."""

    def __init__(self, name: str) -> None:
        self.name = name


class Visits(sw.KeyedProcessFunction[str, str, str]):
    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._count = runtime_context.get_state(sw.ValueStateDescriptor("count", int))
        self._pages = runtime_context.get_list_state(sw.ListStateDescriptor("pages", str))
        self._last = runtime_context.get_state(sw.ValueStateDescriptor("last page"))

    def process_element(self, value: str, ctx: sw.KeyedProcessFunction.Context) -> Any:
        self._count.update((self._count.value() or 0) + 1)
        self._pages.add(f"/{value}")
        self._last.update(Page(value))
        yield value


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    flow = sw.Pipeline("visits")
    names = flow.from_collection(["ann", "bob", "ann"]).key_by(lambda name: name)
    names.process(Visits()).uid("visits").key_by(lambda name: name).count().uid("again").collect()
    flow.run(checkpoints=str(tmp_path / "kept"), checkpoint_interval="1h")
    [found] = (tmp_path / "kept").glob("*/chk-*")
    return str(found)


def test_a_state_into_a_file(checkpoint: str, tmp_path: Path, sluiceway: Any) -> None:
    file = tmp_path / "counts.jsonl"
    done = sluiceway("state", "export", checkpoint, "--operator", "visits", "--state", "count", "--to", str(file))
    assert (done.exit_code, done.stdout) == (0, f"{file}: 2 rows of state 'count' of operator 'visits'\n")
    rows = map(json.loads, file.read_text().splitlines())
    assert {row["key"]: row["value"] for row in rows} == {"ann": 2, "bob": 1}


def test_the_size_of_each_state(checkpoint: str, sluiceway: Any) -> None:
    done = sluiceway("state", "size", checkpoint, "--json")
    assert done.exit_code == 0, done.stderr
    sizes = {(row["uid"], row["state"]): row for row in map(json.loads, done.stdout.splitlines())}
    assert [row["size"] for row in sizes.values()] == sorted((r["size"] for r in sizes.values()), reverse=True)
    pages = sizes["visits", "pages"]
    assert (pages["kind"], pages["keys"], pages["largest_key"]) == ("list", 2, "ann")
    assert 0 < pages["largest_size"] < pages["size"] == sum(size for _, size in pages["subtask_sizes"])
    assert (sizes["again", "aggregate"]["keys"], sizes["again", "aggregate"]["entries"]) == (2, 2)
    table = sluiceway("state", "size", checkpoint, "--uid", "again").stdout.splitlines()
    assert table[0].split()[:6] == ["UID", "STATE", "KIND", "KEYS", "ENTRIES", "BYTES"]
    assert {line.split()[0] for line in table[1:]} == {"again"}


def test_the_size_of_a_step_that_is_not_there(checkpoint: str, sluiceway: Any) -> None:
    done = sluiceway("state", "size", checkpoint, "--uid", "visit")
    assert "visits" in done.stderr


def test_all_states_into_a_directory(checkpoint: str, tmp_path: Path, sluiceway: Any) -> None:
    done = sluiceway("state", "export", checkpoint, "--nested", "--format", "csv", "--to", f"{tmp_path}/out/")
    assert done.exit_code == 0, done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"visits.count.csv", "visits.pages.csv", "visits.last-page.csv", "again.aggregate.csv"}
    assert '"ann","[""/ann"", ""/ann""]"' in (tmp_path / "out/visits.pages.csv").read_text()


def test_classes_are_unpickled_only_where_that_is_allowed(checkpoint: str, tmp_path: Path, sluiceway: Any) -> None:
    file = tmp_path / "pages.jsonl"
    chosen = ("state", "export", checkpoint, "--uid", "visits", "--state", "last page", "--to", str(file))
    assert sluiceway(*chosen).exit_code == 0
    assert {json.loads(line)["value_type"] for line in file.read_text().splitlines()} == {"Page"}
    assert sluiceway(*chosen, "--allow-pickle").exit_code == 0
    assert "value_type" not in json.loads(file.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--to", "x.parquet"],
            "x.parquet takes one state, and there is 'count' of 'visits', 'pages' of",
        ),
        (["--state", "count", "--to", "x.xls"], "x.xls has no known file ending"),
        (["--state", "count", "--to", "x.csv", "--format", "csv"], "--format goes with a directory"),
        (["--to", "out/", "--format", "xls"], "--format: 'xls' is none of parquet, csv, jsonl, arrow"),
        (["--operator", "visit", "--to", "out/"], "Did you mean 'visits'?"),
        (["--state", "count", "--to", "no/x.csv"], "error: --to no/x.csv cannot be written: No such file or"),
        (["--to", "/dev/null/"], "error: --to /dev/null/ cannot be written: "),
    ],
)
def test_what_cannot_be_exported(checkpoint: str, sluiceway: Any, arguments: list[str], says: str) -> None:
    refused = sluiceway("state", "export", checkpoint, *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr
