"""Names of files made from names of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.util.file_names import file_name, file_name_of_id


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("words", "words"),
        ("a/b: c", "a-b-c"),
        ("../up", "up"),
        ("…", ""),
        ("x" * 300, "x" * 120),
        ("日本" * 60, "日本" * 20),
        ("a" + "日" * 60, "a" + "日" * 39),
        ("x" * 119 + "-y", "x" * 119),
    ],
    ids=[
        "plain",
        "other characters",
        "parents",
        "none",
        "long",
        "long in bytes",
        "odd in bytes",
        "hyphen at the end",
    ],
)
def test_a_name_fits_into_a_directory(text: str, name: str, tmp_path: Path) -> None:
    assert file_name(text) == name
    (tmp_path / f"savepoint-{name}-1795787943689-6232.state").touch()


def test_the_end_of_an_id_makes_it_unique() -> None:
    assert file_name_of_id("sums of 日本-12") == "sums-of--12"
    assert file_name_of_id("x" * 300 + "-12") == "x" * 117 + "-12"


@pytest.mark.parametrize("name", ["x" * 300, "日本" * 100, "…"], ids=["long", "long in bytes", "no letter"])
def test_a_job_of_any_name_has_checkpoints_and_resumes(name: str, tmp_path: Path) -> None:
    def run(**options: bool) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        flow = sw.Pipeline(name)
        flow.from_collection([1, 2, 3]).uid("in").key_by(lambda n: 0).sum(lambda n: n).uid("sum").for_each(
            seen.append
        )
        flow.run(checkpoints=tmp_path, checkpoint_interval="1h", restart="none", **options)
        return seen

    assert run() == [(0, 1), (0, 3), (0, 6)]
    assert run(resume=True) == []
