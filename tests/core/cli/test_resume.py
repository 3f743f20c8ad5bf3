"""``--resume``: one command line for the first start and for every restart."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

COUNT = 40_000
COUNTING = f"""
    import os
    from sluiceway_files import FilesSink

    flow = sw.Pipeline("counting", parallelism=2)
    # Slow, so that it is killed and stopped on the way; whoever wants its end says so.
    rate = None if os.path.exists("hurry") else 1_000
    counts = flow.generate(count={COUNT}, rate=rate).key_by(lambda v: v % 10).count().uid("counts")
    counts.sink(FilesSink.json_lines("out")).uid("out")
"""
RUN = ("run", "--no-progress", "--checkpoint-interval", "50ms", "--checkpoints", "kept", "--resume")
ALL = {key: list(range(1, COUNT // 10 + 1)) for key in range(10)}


def completed(place: Path) -> set[Path]:
    return set(place.glob("kept/*/chk-*/metadata.json"))


def written(place: Path) -> dict[int, list[int]]:
    counts: dict[int, list[int]] = defaultdict(list)
    for file in (place / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count = json.loads(line)
            counts[key].append(count)
    return {key: sorted(seen) for key, seen in counts.items()}


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_same_command_line_goes_on_after_each_kill(start: Any, write: Any, place: Path, workers: str) -> None:
    write("job.py", COUNTING)
    (place / "temporary").mkdir()

    def run() -> Any:
        return start(*RUN, "--workers", workers, "job.py", TMPDIR=str(place / "temporary"))

    def kill(process: Any) -> str:
        process.send_signal(signal.SIGKILL)
        return str(process.communicate(timeout=PATIENT_S)[1])

    said = []
    for attempt in range(4):
        before = completed(place)
        process = run()
        first = process.stderr.readline()
        if attempt != 1:  # that one is killed before it has a checkpoint of its own
            until(lambda before=before: completed(place) - before)
        kill(process)
        said.append(first)
        assert all(len(set(seen)) == len(seen) for seen in written(place).values()), "nothing twice at any time"
    assert said[0].startswith("found no checkpoint of 'counting' in ")
    assert "starting from the beginning" in said[0]
    for told in said[1:]:
        assert told.startswith("resuming 'counting' from checkpoint "), told
        assert f": {place}/kept/counting-" in told

    (place / "hurry").touch()
    last = run()
    _, told = last.communicate(timeout=PATIENT_S)
    assert last.returncode == 0, told
    assert written(place) == ALL
    assert [name for name in os.listdir(place / "out") if name.startswith(".")] == [], "nothing is left over"

    again = run()
    _, told = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, told
    assert "the last one of a finished run" in told
    assert written(place) == ALL, "what has ended stays ended"


def test_checkpoints_of_earlier_runs_are_pruned_and_savepoints_kept(
    start: Any, write: Any, place: Path, sluiceway: Any
) -> None:
    nothing = sluiceway("checkpoints", "prune", "kept")
    assert (nothing.exit_code, nothing.stdout) == (0, "0 checkpoints of earlier runs, with 0 B of state.\n")
    write("job.py", COUNTING)
    write("other.py", COUNTING.replace('"counting"', '"other"').replace('"out"', '"elsewhere"'))
    for number, end in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        before = completed(place)
        process = start(*RUN, "--savepoint", "kept", "job.py")
        until(lambda before=before: completed(place) - before)
        process.send_signal(end)
        process.communicate(timeout=PATIENT_S)
        if number == 0:
            process = start(*RUN, "other.py")
            until(lambda: list(place.glob("kept/other-*/chk-*/metadata.json")))
            process.kill()
            process.communicate()
    runs = sorted(
        place.glob("kept/counting-*"),
        key=lambda run: max(p.stat().st_mtime for p in run.glob("chk-*/metadata.json")),
    )
    damaged = runs[0] / "chk-1000" / "metadata.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    earlier = {
        str(p.parent.relative_to(place / "kept")) for run in runs[:-1] for p in run.glob("chk-*/metadata.json")
    }
    earlier.discard(str(damaged.parent.relative_to(place / "kept")))
    assert len(earlier) == 2
    there = completed(place)
    would = json.loads(sluiceway("checkpoints", "prune", "kept", "--dry-run", "--json").stdout)
    assert (would["deleted"], set(would["earlier"])) == ([], earlier)
    assert completed(place) == there
    done = sluiceway("checkpoints", "prune", "kept")
    assert done.exit_code == 0
    assert set(done.stdout.splitlines()[:-1]) == {f"deleted {name}" for name in earlier}
    assert f"{damaged}" in done.stderr
    assert completed(place) == there - {place / "kept" / name / "metadata.json" for name in earlier}
    assert len(list(place.glob("kept/savepoint-counting-*/metadata.json"))) == 1
    damaged.unlink()
    (place / "hurry").touch()
    last = start(*RUN, "job.py")
    _, said = last.communicate(timeout=PATIENT_S)
    assert last.returncode == 0, said
    assert written(place) == ALL


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    start: Any, write: Any, place: Path
) -> None:
    write("job.py", COUNTING)
    hidden = {"--checkpoint-interval": "1h"}
    first = start(*[hidden.get(RUN[i - 1], part) for i, part in enumerate(RUN)], "job.py")
    until(lambda: [name for name in os.listdir(place) if name == "out"] and list((place / "out").glob(".part-*")))
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=PATIENT_S)
    (place / "hurry").touch()
    again = start(*RUN, "job.py")
    _, said = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, said
    assert "starting from the beginning" in said
    assert written(place) == ALL
    assert list((place / "out").glob(".part-*")) == []


@pytest.mark.parametrize("savepoints", ["kept", "elsewhere"])
def test_a_job_that_was_stopped_resumes_from_its_savepoint(
    start: Any, write: Any, place: Path, savepoints: str
) -> None:
    write("job.py", COUNTING)
    command = (*RUN, "--savepoint", savepoints, "job.py")
    first = start(*command)
    until(lambda: completed(place))
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=PATIENT_S)
    assert first.returncode == 0, said
    (location,) = [
        line.removeprefix("savepoint: ") for line in said.splitlines() if line.startswith("savepoint: ")
    ]
    assert location.startswith(f"{place}/{savepoints}/savepoint-counting-")
    (place / "hurry").touch()
    again = start(*command)
    _, said = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, said
    assert "resuming 'counting' from savepoint " in said
    assert f": {location}\n" in said
    assert written(place) == ALL


def test_a_savepoint_that_a_job_was_stopped_with_and_that_is_gone_is_missed(
    start: Any, write: Any, place: Path, sluiceway: Any
) -> None:
    write("job.py", COUNTING)
    first = start(*RUN, "--savepoint", "elsewhere", "job.py")
    until(lambda: completed(place))
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENT_S)
    (place / "elsewhere").rename(place / "moved")
    told = sluiceway(*RUN, "job.py")
    assert told.exit_code == 3
    assert f"'counting' was stopped with the savepoint {place}/elsewhere/savepoint-counting-" in told.stderr
    assert "name with --from the checkpoint to begin with" in told.stderr


def test_what_resume_needs_and_what_it_does_not_go_with(sluiceway: Any, write: Any) -> None:
    write("job.py", COUNTING + "    numbers = flow.from_sequence(1, 3)\n")
    told = sluiceway("run", "--resume", "job.py")
    assert told.exit_code == 2
    assert "resume (--resume) begins with the job's newest checkpoint" in told.stderr
    assert "name one with --checkpoints" in told.stderr
    told = sluiceway(*RUN, "--from", "x", "job.py")
    assert told.exit_code == 2
    assert "resume (--resume) and from (--from) both say what the job begins with" in told.stderr
    told = sluiceway(*RUN, "job.py:numbers")
    assert told.exit_code == 2
    assert "resume (--resume) is for a whole Pipeline" in told.stderr
    told = sluiceway("run", "--checkpoints", "kept", "--resume", "--no-resume", "--quiet", "job.py:numbers")
    assert (told.exit_code, told.stdout) == (0, "1\n2\n3\n"), told.stderr


def test_a_cluster_resumes_what_was_stopped_and_refuses_what_runs(cluster: Any, write: Any, place: Path) -> None:
    write("job.py", COUNTING)
    assert cluster("cluster", "start", "--workers", "1", "--slots", "2").returncode == 0
    submit = ("submit", "--checkpoint-interval", "50ms", "--checkpoints", "kept", "--resume", "job.py")
    first = cluster(*submit)
    assert first.returncode == 0, first.stderr
    assert "found no checkpoint of 'counting'" in first.stderr
    job = first.stdout.strip()
    cluster.until(lambda: completed(place))
    told = cluster(*submit)
    assert told.returncode == 2
    assert f"'counting' is running already, as {job}" in told.stderr
    location = cluster("stop", job, "--savepoint", "elsewhere").stdout.strip()
    assert "/elsewhere/savepoint-counting-" in location
    (place / "hurry").touch()
    again = cluster(*submit)
    assert again.returncode == 0, again.stderr
    assert f": {location}\n" in again.stderr
    assert cluster.ended(again.stdout.strip())["status"] == "finished"
    assert written(place) == ALL
