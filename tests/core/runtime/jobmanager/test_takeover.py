"""The savepoint that a job was to end with is found by the next job manager, whatever else is in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.checkpoint import SAVEPOINT, CheckpointMetadata, encode_metadata, load_metadata
from sluiceway.errors import CheckpointError
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.takeover import find_last_savepoint, mark_left_behind


def write(place: Path, name: str, content: bytes) -> None:
    (place / name).mkdir()
    (place / name / "metadata.json").write_bytes(content)


def metadata(job: str, number: int, *, stops: bool = True, run: str = "") -> bytes:
    return encode_metadata(
        CheckpointMetadata(
            job_name="meters",
            job_id=job,
            checkpoint_id=number,
            kind=SAVEPOINT,
            triggered_ms=1,
            completed_ms=2,
            vertices=(),
            properties={**({"stops": True} if stops else {}), **({"run": run} if run else {})},
        )
    )


def found(place: Path, after: int) -> tuple[str, int] | None:
    return find_last_savepoint(default_manager().checkpoint_storage(str(place)), "meters-1", after)


def test_it_is_the_last_one_that_the_job_was_stopped_with(tmp_path: Path) -> None:
    for number in (7, 8):
        write(tmp_path, f"savepoint-meters-1-100-{number}", metadata("meters-1", number))
    write(tmp_path, "savepoint-meters-1-100-9", metadata("meters-1", 9, stops=False))
    assert found(tmp_path, 5) == (str(tmp_path / "savepoint-meters-1-100-8"), 8)
    assert found(tmp_path, 8) is None


def test_one_of_an_earlier_run_whose_job_had_the_same_id_does_not_count(tmp_path: Path) -> None:
    """Ids are counted in a job store: a new store has them once more."""
    for number, run in ((8, "meters-2"), (50, "meters-1"), (60, "")):
        write(tmp_path, f"savepoint-meters-1-100-{number}", metadata("meters-1", number, run=run))
    storage = default_manager().checkpoint_storage(str(tmp_path))
    assert find_last_savepoint(storage, "meters-1", 5, "meters-2") == (
        str(tmp_path / "savepoint-meters-1-100-8"),
        8,
    )
    assert found(tmp_path, 5) == (str(tmp_path / "savepoint-meters-1-100-60"), 60), "of a run without a place"


@pytest.mark.parametrize(
    "name", ["savepoint-meters-2-100-9", "savepoint-meters-100-9", "savepoint-meters-1-1-100-9", "savepoint-x"]
)
def test_damaged_ones_of_other_jobs_are_not_read(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, b'{"format":')
    assert found(tmp_path, 5) is None


def test_a_damaged_one_of_the_job_is_an_error_unless_a_checkpoint_is_newer(tmp_path: Path) -> None:
    write(tmp_path, "savepoint-meters-1-100-6", b'{"format":')
    with pytest.raises(CheckpointError, match="savepoint-meters-1-100-6"):
        found(tmp_path, 5)
    assert found(tmp_path, 6) is None


def test_savepoints_that_are_newer_than_what_is_restored_are_marked(tmp_path: Path) -> None:
    places = [tmp_path / f"savepoint-meters-1-100-{number}" for number in (4, 6, 7)]
    for place, number in zip(places[:2], (4, 6), strict=True):
        write(tmp_path, place.name, metadata("meters-1", number, stops=False))
    open_storage = default_manager().checkpoint_storage
    mark_left_behind(map(str, places), open_storage, 5)
    storage = open_storage(str(tmp_path))
    marked = [load_metadata(storage, place.name).properties.get("behind") for place in places[:2]]
    assert marked == [None, True], "and the third is not there any more"
