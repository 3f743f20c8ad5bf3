"""State of checkpoints as files that other programs read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
