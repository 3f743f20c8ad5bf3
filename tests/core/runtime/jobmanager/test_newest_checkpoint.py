"""Which checkpoint of a directory a job begins with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sluiceway.checkpoint import CHECKPOINT, METADATA, SAVEPOINT, CheckpointMetadata, encode_metadata
from sluiceway.errors import CheckpointError
from sluiceway.runtime.jobmanager.newest_checkpoint import find_newest, find_resumable, note_stop
from sluiceway_filesystem._storage import open_storage


def write(
    place: Path,
    name: str,
    kind: str,
    completed_ms: int,
    *,
    number: int | None = None,
    job: str = "job",
    **properties: Any,
) -> None:
    metadata = CheckpointMetadata(
        job_name=job,
        job_id=job,
        checkpoint_id=completed_ms if number is None else number,
        kind=kind,
        triggered_ms=0,
        completed_ms=completed_ms,
        properties=properties,
    )
    (place / name).mkdir(parents=True)
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


def test_a_clock_that_is_set_back_makes_no_checkpoint_of_a_run_older(tmp_path: Path) -> None:
    write(tmp_path, "one", CHECKPOINT, 20, number=8, run="a")
    write(tmp_path, "two", CHECKPOINT, 10, number=9, run="a")
    assert newest(tmp_path) == "two"
    write(tmp_path, "three", CHECKPOINT, 15, number=1, run="b")
    assert newest(tmp_path) == "three", "each run counts from 1"


# -- resuming -----------------------------------------------------------------------------------------------


def resumable(place: Path, job: str = "job") -> str | None:
    found = find_resumable(open_storage(str(place)), job, open_storage)
    return None if found is None else found.location.removeprefix(f"{place}/")


def damage(place: Path, name: str, *, written_ms: int) -> None:
    file = place / name / METADATA
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"{")
    os.utime(file, ns=(written_ms * 1_000_000,) * 2)


def test_a_job_resumes_from_what_it_has_left_itself(tmp_path: Path) -> None:
    assert resumable(tmp_path) is None
    write(tmp_path, "other", CHECKPOINT, 20, run="a", job="job two")
    assert resumable(tmp_path) is None
    write(tmp_path, "one", CHECKPOINT, 10, run="b")
    write(tmp_path, "two", CHECKPOINT, 11, run="c")
    assert resumable(tmp_path) == "two"
    write(tmp_path, "last", SAVEPOINT, 12, run="c", stops=True)
    assert resumable(tmp_path) == "last"
    assert resumable(tmp_path, "job two") == "other"


def test_a_damaged_checkpoint_is_skipped_only_if_a_newer_one_is_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "two", CHECKPOINT, 2_000, run="b")
    damage(tmp_path, "of-job-one", written_ms=1_000)
    damage(tmp_path, "of-another", written_ms=3_000)
    assert resumable(tmp_path) == "two"
    (warned,) = caplog.messages
    assert "of-job-one" in warned
    assert warned.endswith(f"it is older than {tmp_path}/two and is skipped")
    damage(tmp_path, "of-job-three", written_ms=3_000)
    told = r"of-job-three/metadata.json.*It may be the newest checkpoint of 'job'.*with --from: that one is .*/two"
    with pytest.raises(CheckpointError, match=told):
        resumable(tmp_path)


def test_of_a_run_whose_clock_was_set_back_neither_stop_nor_damage_is_older_than_it_is(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    write(place, "of-job/chk-000008", CHECKPOINT, 20_000, number=8, run="of-job")
    damage(place, "of-job/chk-000009", written_ms=10_000)
    with pytest.raises(CheckpointError, match="It may be the newest checkpoint of 'job'"):
        resumable(place)
    damage(place, "of-job/chk-000007", written_ms=30_000)
    (place / "of-job/chk-000009" / METADATA).unlink()
    assert resumable(place) == "of-job/chk-000008"
    write(tmp_path, "last", SAVEPOINT, 11_000, number=10, run="of-job", stops=True)
    note_stop(open_storage(str(place)), "of-job", "job", str(tmp_path / "last"), 11_000)
    assert resumable(place) == str(tmp_path / "last")


def test_a_damaged_checkpoint_alone_is_no_reason_to_begin_at_the_beginning(tmp_path: Path) -> None:
    damage(tmp_path, "of-job-one", written_ms=1_000)
    with pytest.raises(CheckpointError, match=r"It may be the newest checkpoint of 'job'.*--from: there is none"):
        resumable(tmp_path)


def test_a_job_resumes_from_the_savepoint_elsewhere_that_it_was_stopped_with(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    for folder in (place, elsewhere):
        folder.mkdir()
    write(place, "one", CHECKPOINT, 10, run="a")
    write(elsewhere, "last", SAVEPOINT, 11, run="a", stops=True)
    storage = open_storage(str(place))
    note_stop(storage, "a", "job", str(elsewhere / "last"), 12)
    assert resumable(place) == str(elsewhere / "last")
    assert resumable(place, "another") is None
    write(place, "two", CHECKPOINT, 13, run="b")
    assert resumable(place) == "two", "it has been resumed meanwhile"
    note_stop(storage, "b", "job", str(place / "two"), 14)
    assert not (place / "b").exists(), "what is in the place itself is found"
    (place / "a" / "stopped.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"a/stopped.json is damaged"):
        resumable(place)
