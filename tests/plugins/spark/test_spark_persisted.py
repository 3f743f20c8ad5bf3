"""Classes of the Spark plugin in checkpoints keep their names, and are found under earlier ones."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from sluiceway_spark import persisted
from sluiceway_spark.persisted import (
    AddedFile,
    RemovedFiles,
    SinkProgress,
    StagedFile,
    StagedRows,
    StagingProgress,
)

STORED = [
    StagedFile("/d", "part-0.arrow", 3, 1, 7),
    StagingProgress("/d", (StagedFile("/d", "part-0.arrow", 3, 1),), frozenset({3}), True, "f"),
    AddedFile(".hidden", "part-0"),
    RemovedFiles(("part-0",)),
    StagedRows("app", 3, ("part-0.parquet",), 7),
    SinkProgress({("out", 0): b"state"}, frozenset({("out", 1)}), 5),
]
# Names of released versions.
NAMES = {"AddedFile", "RemovedFiles", "SinkProgress", "StagedFile", "StagedRows", "StagingProgress"}
EARLIER = [
    ("sluiceway_spark._enumerator", "Staged", "StagingProgress"),
    ("sluiceway_spark._sinkwriter", "Added", "AddedFile"),
    ("sluiceway_spark._sinkwriter", "Removed", "RemovedFiles"),
    ("sluiceway_spark._staging", "Part", "StagedFile"),
    ("sluiceway_sparkengine.structured.sinkstage", "_Kept", "SinkProgress"),
]


def test_no_name_is_added_or_removed_unnoticed() -> None:
    assert set(persisted.__all__) == NAMES == {type(value).__name__ for value in STORED}


@pytest.mark.parametrize("value", STORED, ids=lambda value: type(value).__name__)
def test_a_pickle_names_this_module_alone(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert type(value).__module__ == "sluiceway_spark.persisted"


@pytest.mark.parametrize(("module", "name", "now"), EARLIER)
def test_a_class_is_found_under_its_earlier_name(module: str, name: str, now: str) -> None:
    """In a process that has imported what uses it, and nothing else."""
    code = (
        "import pickle, sluiceway_spark.persisted as persisted\n"
        f"assert pickle.loads({f'c{module}{chr(10)}{name}{chr(10)}.'.encode()!r}) is persisted.{now}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
