"""State of checkpoints as files that other programs read."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.savepoint import read
from sluiceway.state import KeyedSnapshot

pa = pytest.importorskip("pyarrow")

TAGS = sw.ValueStateDescriptor("tags", list[str])
COUNT = sw.ValueStateDescriptor("count", int)


def fill(store: KeyedStateStore) -> None:
    for number, name in enumerate(("ann", "bob")):
        store.current_key = name
        store.value_state(TAGS).update(["x", str(number)])
        store.value_state(COUNT).update(number)


@pytest.fixture
def checkpoint(keyed: Callable[..., KeyedSnapshot], save: Callable[..., str]) -> str:
    return save([OperatorSnapshot("the op", keyed=keyed(fill))])


def read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".arrow":
        with pa.ipc.open_file(path) as file:
            return file.read_all().to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".csv":
        return [
            {**row, "value": json.loads(row["value"])} for row in csv.DictReader(path.read_text().splitlines())
        ]
    return list(map(json.loads, path.read_text().splitlines()))


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "arrow"])
def test_files(checkpoint: str, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"tags.{ending}"
    assert read(checkpoint)["the op"]["tags"].write(str(file)) == 2
    rows = sorted(read_file(file), key=lambda row: row["key"])
    assert rows == [{"key": "ann", "value": ["x", "0"]}, {"key": "bob", "value": ["x", "1"]}]
    assert [path.name for path in tmp_path.glob("tags*")] == [file.name]


def test_a_url(checkpoint: str) -> None:
    import fsspec

    read(checkpoint)["the op"]["count"].write("memory://counts.csv")
    with fsspec.open("memory://counts.csv", "rt") as file:
        assert sorted(file.read().split()) == ['"ann",0', '"bob",1', '"key","value"']


def test_an_unknown_ending(checkpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no known file ending: .* \.parquet, \.csv, \.jsonl, \.arrow"):
        read(checkpoint)["the op"]["tags"].write("tags.xls")


def test_a_write_that_breaks_leaves_nothing(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = read(checkpoint)["the op"]["tags"]
    assert table.schema is not None
    monkeypatch.setattr(table, "batches", lambda: iter([None]))
    with pytest.raises(AttributeError):
        table.write(str(tmp_path / "tags.jsonl"))
    assert not list(tmp_path.glob("tags*"))


def test_lines_of_json_are_json_for_every_reader_and_are_taken_back(
    keyed: Callable[..., KeyedSnapshot], save: Callable[..., str], tmp_path: Path
) -> None:
    number, pause = sw.ValueStateDescriptor("number", float), sw.ValueStateDescriptor("pause", dt.timedelta)

    def fill(store: KeyedStateStore) -> None:
        for key, value in enumerate((float("inf"), float("-inf"), float("nan"))):
            store.current_key = key
            store.value_state(number).update(value)
            store.value_state(pause).update(dt.timedelta(seconds=-key))

    place = save([OperatorSnapshot("op", keyed=keyed(fill))])
    with sw.savepoint.edit(place, tmp_path / "new") as savepoint:
        for descriptor in (number, pause):
            file = tmp_path / f"{descriptor.name}.jsonl"
            read(place)["op"][descriptor.name].write(str(file))
            lines = [msgspec.json.decode(line) for line in file.read_text().splitlines()]  # refuses NaN
            savepoint.put("op", descriptor, lines)
    for descriptor in (number, pause):
        old, new = (read(where)["op"][descriptor.name].rows() for where in (place, tmp_path / "new"))
        assert sorted(map(str, new)) == sorted(map(str, old))


def test_places_may_be_paths(checkpoint: str, tmp_path: Path) -> None:
    place, new, made = Path(checkpoint), tmp_path / "new", tmp_path / "made"
    table = read(place)["the op"]["count"]
    assert table.write(tmp_path / "count.csv") == 2
    with sw.savepoint.edit(place, new) as edited:
        edited.put("the op", COUNT, table)
    with sw.savepoint.write(made) as written:
        written.put("the op", COUNT, table)
    for other in (new, made):
        assert sorted(row.value for row in sw.savepoint.read_state(other, state="count")) == [0, 1]
        assert {size.keys for size in sw.savepoint.state_sizes(other)} == {2}
