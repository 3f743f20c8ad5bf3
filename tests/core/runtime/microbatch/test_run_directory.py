"""Directories of runs in micro-batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway import Pipeline
from sluiceway.cli.resume_hints import tell_of_checkpoint, tell_where_to_go_on
from sluiceway.config.settings import Settings
from sluiceway.errors import CheckpointError, StateError
from sluiceway.plugins import default_manager
from sluiceway.runtime.microbatch.run_directory import (
    check_same,
    find_runs,
    is_finished,
    keyed_subtasks_of,
    new_run,
)
from sluiceway.runtime.stepped import SteppedPlan


def plan(
    name: str = "job",
    parallelism: int = 2,
    *,
    step: str = "count",
    groups: int | None = None,
    keyed_subtasks: int | None = None,
) -> SteppedPlan:
    flow = Pipeline(name, parallelism=parallelism, max_parallelism=groups)
    counts = flow.from_collection(["a"]).uid("words").key_by(lambda word: word).count().uid(step)
    counts.collect()
    settings = Settings(parallelism=parallelism)
    services = default_manager().services()
    return SteppedPlan.of(flow.graph(settings), settings, services, keyed_subtasks=keyed_subtasks)


def storage(place: Path) -> Any:
    return default_manager().checkpoint_storage(str(place))


def test_runs_are_found_in_their_directory_and_in_the_one_above(tmp_path: Path) -> None:
    place = storage(tmp_path)
    runs = [new_run(plan(), "spark", at, 3) for at in (2_000, 1_000)]
    for run in runs:
        run.write(place)
    assert find_runs(place) == runs[::-1]
    assert not is_finished(place, runs[0])
    runs[0].finish(place, 5_000)
    assert is_finished(place, runs[0])
    alone = storage(tmp_path / runs[0].directory)
    assert find_runs(alone) == [replace(runs[0], directory="")]
    assert find_runs(storage(tmp_path / "nothing")) == []


@pytest.mark.parametrize("keyed_subtasks", [None, 4, 8, 32])
def test_a_job_goes_on_with_the_keyed_subtasks_that_it_had(keyed_subtasks: int | None, tmp_path: Path) -> None:
    """In runs of earlier versions that was one for each key group."""
    run = new_run(plan(keyed_subtasks=keyed_subtasks), "spark", 1_000, 3, spread=True)
    run.write(storage(tmp_path))
    [found] = find_runs(storage(tmp_path))
    again = plan(keyed_subtasks=keyed_subtasks_of(found))
    check_same(found, again, "the place")
    assert new_run(again, "spark", 1_000, 3).vertices == run.vertices


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"name": "other"}, "is of a run of 'job', not of 'other'"),
        (
            {"step": "sum"},
            "step 'count' is gone; .*step 'sum' is new. Undo that, or start from the beginning without --from",
        ),
        ({"parallelism": 3}, "had parallelism 2 and has 3"),
        ({"groups": 16}, "'count' had 32 key groups and has 16"),
    ],
)
def test_a_job_that_has_changed_cannot_go_on(now: dict[str, Any], message: str) -> None:
    run = new_run(plan(), "spark", 1_000, 3)
    check_same(run, plan(), "the place")
    with pytest.raises(StateError, match=message):
        check_same(run, plan(**now), "the place")


def test_what_is_no_description_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"run\.json does not describe a run"):
        find_runs(storage(tmp_path))
    (tmp_path / "run.json").write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match=r"is of layout 99, and this version knows layout 1"):
        find_runs(storage(tmp_path))


def test_an_earlier_run_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(engine="spark", checkpoints=str(tmp_path))
    tell_of_checkpoint(settings, "job")
    run = new_run(plan(), "spark", 1_000, 3)
    run.write(storage(tmp_path))
    tell_of_checkpoint(settings, "another")
    assert capsys.readouterr().err == ""
    tell_of_checkpoint(settings, "job")
    assert f"To resume it: --from {tmp_path}/{run.directory}\n" in capsys.readouterr().err
    tell_where_to_go_on(settings, "job")
    assert capsys.readouterr().err == f"to resume this run: --from {tmp_path}/{run.directory}\n"
    again = Settings(engine="spark", from_checkpoint=f"{tmp_path}/{run.directory}")
    tell_where_to_go_on(again, "job")
    assert capsys.readouterr().err == f"to resume this run: --from {tmp_path}/{run.directory}\n"
    run.finish(storage(tmp_path), 2_000)
    tell_of_checkpoint(settings, "job")
    tell_where_to_go_on(settings, "job")
    tell_where_to_go_on(Settings(engine="spark"), "job")
    assert capsys.readouterr().err == ""
