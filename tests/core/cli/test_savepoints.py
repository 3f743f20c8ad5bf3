"""``sluiceway savepoint``, ``stop --savepoint``, ``run --savepoint``: as a user uses them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw

FLOW = """
    from sluiceway.testing import KeySequence, NumberFiles

    flow = sw.Pipeline("numbers", max_parallelism=16)
    numbers = flow.generate(rate={rate}, count=100_000).uid("numbers").key_by(lambda n: n % 12)
    numbers.map(KeySequence(12)).uid("{uid}").sink(NumberFiles("out")).uid("out")
"""


@pytest.fixture
def numbers(write: Callable[..., Path]) -> None:
    write("slow.py", FLOW.format(rate=500, uid="counted"))  # it would take minutes
    write("fast.py", FLOW.format(rate="None", uid="counted"))
    write("wider.py", FLOW.format(rate="None", uid="counted").replace("parallelism=16", "parallelism=32"))
    write("other.py", FLOW.format(rate="None", uid="renamed"))


def written(place: Path) -> int:
    return sum(len(file.read_text().split()) for file in (place / "out").glob("*") if file.suffix == ".done")


@pytest.mark.usefixtures("numbers")
def test_savepoints_of_a_cluster_s_jobs(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "2", "--slots", "2")
    job = cluster(
        "submit", "slow.py", "-p", "2", "--checkpoint-interval", "50ms", "--checkpoints", "kept"
    ).stdout.strip()
    cluster.until(lambda: cluster.json("list")[0]["records_out"] > 100)
    # Else the savepoint may be the first of all.
    cluster.until(lambda: "completed" in [c["status"] for c in cluster.json("checkpoints", "history", job)])

    created = cluster("savepoint", "create", job)
    assert created.returncode == 0, created.stderr
    assert Path(created.stdout.strip()).parent == place / "kept"
    created = cluster("savepoint", "create", job, "mine")
    assert Path(created.stdout.strip()).parent == place / "mine"
    assert "savepoint" in cluster("savepoint", "list", "mine").stdout
    assert "'counted'" not in cluster("savepoint", "show", created.stdout.strip()).stderr
    assert "Deleted" in cluster("savepoint", "delete", created.stdout.strip()).stdout
    assert list((place / "mine").rglob("*")) == []

    taken = cluster("checkpoints", "take", job)
    assert int(taken.stdout) in [c["checkpoint"] for c in cluster.json("checkpoints", "history", job)]
    assert "there is no job 'other'" in cluster("checkpoints", "take", "other").stderr

    history = cluster.json("checkpoints", "history", job)
    assert [str(Path(c["savepoint"]).parent) for c in history if c["savepoint"]] == [
        str(place / "kept"),
        str(place / "mine"),
    ]
    done = [c for c in history if c["status"] == "completed"]
    assert len(done) >= 2
    assert all(len(c["subtasks"]) == 4 and c["size"] == sum(s["size"] for s in c["subtasks"]) for c in done)
    shown = cluster("checkpoints", job, "--subtasks").stdout
    assert "SYNC" in shown
    assert "KeySequence" in shown
    kept = cluster.json("checkpoints", "kept")
    runs = [run["checkpoints"] for run in kept if len(run["checkpoints"]) > 1]
    assert len(runs) == 2, "that of the checkpoints, and that of the savepoint, which knows those before it"
    for found in runs:
        assert all(c in ("completed", "failed") for c in (one["status"] for one in found))
        assert len(found[-1]["subtasks"]) == 4

    stopped = cluster("stop", job, "--savepoint", "end")
    assert stopped.returncode == 0, stopped.stderr
    location = Path(stopped.stdout.strip())
    assert cluster.json("list")[0]["status"] == "finished"
    assert "is finished already" in cluster("stop", job, "--savepoint", "end").stderr
    assert "there is no job 'nobody'" in cluster("savepoint", "create", "nobody").stderr

    refused = cluster("submit", "other.py", "--from", str(location))
    assert "state of 'counted', which no step" in refused.stderr
    go_on = cluster("submit", "fast.py", "-p", "3", "--from", "end", "--checkpoint-interval", "1h").stdout.strip()
    cluster.comes_to_be(go_on, "finished")
    numbers = sorted(int(n) for f in (place / "out").iterdir() for n in f.read_text().split())
    assert numbers == list(range(100_000))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("numbers")
def test_a_run_ends_with_a_savepoint_on_a_signal(start: Any, sluiceway: Any, place: Path, number: int) -> None:
    process = start("run", "slow.py", "--savepoint", "kept", "--checkpoint-interval", "50ms", "--no-progress")
    while process.poll() is None and not written(place):
        pass
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, told
    assert "ending with a savepoint; " in told
    (line,) = [line for line in told.splitlines() if line.startswith("savepoint: ")]
    location = Path(line.removeprefix("savepoint: "))
    assert location.parent == place / "kept"
    assert sluiceway("run", "fast.py", "--from", str(location), "--checkpoint-interval", "1h").exit_code == 0
    numbers = sorted(int(n) for f in (place / "out").iterdir() for n in f.read_text().split())
    assert numbers == list(range(100_000))


@pytest.mark.usefixtures("numbers")
def test_what_a_changed_pipeline_would_make_of_a_savepoint(start: Any, sluiceway: Any, place: Path) -> None:
    process = start("run", "slow.py", "--savepoint", "kept", "--checkpoint-interval", "50ms", "--no-progress")
    while process.poll() is None and not written(place):
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENT_S)

    same = sluiceway("savepoint", "diff", "--from", "kept", "fast.py")
    assert same.exit_code == 0, same.stderr
    assert ["keeps", "counted"] in [line.split()[:2] for line in same.stdout.splitlines()]
    other = sluiceway("savepoint", "diff", "--from", "kept", "other.py", "--json")
    assert other.exit_code == 2
    assert "the job would be refused: no step goes by 'counted': give its step that uid, or" in other.stderr
    found = {s["uid"]: s["what"] for s in json.loads(other.stdout)["steps"]}
    assert found == {"numbers": "keeps", "renamed": "new", "counted": "dropped", "out": "keeps"}
    allowed = sluiceway("savepoint", "diff", "--from", "kept", "--allow-dropped-state", "other.py")
    assert allowed.exit_code == 0
    wider = sluiceway("savepoint", "diff", "--from", "kept", "wider.py")
    assert wider.exit_code == 2
    assert "saved in 16 key groups, and the job divides it into 32: set max-parallelism to 16" in wider.stderr
    assert "--from says which savepoint" in sluiceway("savepoint", "diff", "fast.py").stderr


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(("where", "code"), [("file", 3), ("odd://x", 2)])
def test_a_place_that_cannot_be_written_is_told_before_the_job_runs(
    write: Any, place: Path, sluiceway: Any, where: str, code: int, workers: str
) -> None:
    (place / "file").touch()
    write(
        "job.py",
        """
        flow = sw.Pipeline("job")
        flow.from_collection([1]).for_each(lambda n: open("ran", "a").close())
        """,
    )
    result = sluiceway("run", "job.py", "--workers", workers, "--savepoint", where)
    assert result.exit_code == code, result.stderr
    assert "cannot be kept in" in result.stderr
    assert not (place / "ran").exists()
    done = sluiceway("run", "job.py", "--workers", workers, "--savepoint", "kept")
    assert done.exit_code == 0, done.stderr
    assert not [file for file in (place / "kept").rglob("*") if file.is_file()]


def test_only_the_savepoint_s_own_files_are_deleted(place: Path, sluiceway: Any) -> None:
    for location in ("kept", "kept/later"):
        with sw.savepoint.write(location) as savepoint:
            savepoint.put("counted", sw.ValueStateDescriptor("count", int), [("a", 1)], key=0, value=1)
    (place / "kept" / "mine.csv").touch()
    refused = sluiceway("checkpoints", "delete", "kept")
    assert (refused.exit_code, refused.stderr) == (
        2,
        "error: kept is a savepoint: sluiceway savepoint delete deletes it\n",
    )
    assert sluiceway("savepoint", "delete", "kept").exit_code == 0
    left = {str(file.relative_to(place / "kept")) for file in (place / "kept").rglob("*") if file.is_file()}
    assert {"mine.csv", "later/metadata.json"} <= left
    assert [file for file in left if "/" not in file] == ["mine.csv"]
    assert list(sw.savepoint.read("kept/later")["counted"]["count"].rows())
