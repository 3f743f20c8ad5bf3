"""Which checkpoint of a directory a job begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluiceway.checkpoints import CHECKPOINT, METADATA, SAVEPOINT, CheckpointMetadata, encode_metadata
from sluiceway.errors import CheckpointError
from sluiceway.runtime.restoring import find_newest
from sluiceway_filesystem._storage import open_storage


def write(place: Path, name: str, kind: str, completed_ms: int, **properties: Any) -> None:
    metadata = CheckpointMetadata(
        job_name="job",
        job_id="job",
        checkpoint_id=completed_ms,
        kind=kind,
        triggered_ms=0,
        completed_ms=completed_ms,
        properties=properties,
    )
    (place / name).mkdir()
    (place / name / METADATA).write_bytes(encode_metadata(metadata))


def newest(place: Path) -> str:
    return find_newest(open_storage(str(place)), "")[0]


def test_it_is_the_one_that_was_completed_last(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no complete checkpoint"):
        newest(tmp_path)
    write(tmp_path, "one", CHECKPOINT, 10, run="a")
    write(tmp_path, "two", CHECKPOINT, 11, run="b")
    assert newest(tmp_path) == "two"
    write(tmp_path, "last", SAVEPOINT, 12, run="b", stops=True)
    assert newest(tmp_path) == "last"


def test_what_a_run_has_gone_back_behind_has_to_be_named(tmp_path: Path) -> None:
    write(tmp_path, "two", SAVEPOINT, 10, run="a", behind=True)
    told = r"there are only savepoints whose run has failed after them .* name its own directory, such as .*two"
    with pytest.raises(CheckpointError, match=told):
        newest(tmp_path)
    assert find_newest(open_storage(str(tmp_path)), "two")[0] == "two"
    write(tmp_path, "one", CHECKPOINT, 9, run="b")
    assert newest(tmp_path) == "one"


def test_a_run_may_have_gone_back_behind_a_savepoint_that_it_went_on_after(tmp_path: Path) -> None:
    write(tmp_path, "one", SAVEPOINT, 10, run="a")
    assert newest(tmp_path) == "one", "there is nothing else to begin with"
    write(tmp_path, "two", CHECKPOINT, 9, run="b")
    assert newest(tmp_path) == "one", "that is another run"
    write(tmp_path, "three", CHECKPOINT, 8, run="a")
    assert newest(tmp_path) == "two"
    write(tmp_path, "four", SAVEPOINT, 11)
    assert newest(tmp_path) == "four", "its run had no checkpoints but in memory, and those are gone"
