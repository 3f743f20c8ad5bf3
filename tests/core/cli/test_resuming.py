"""A run that was killed: its workers end, and the next run says from where it could go on."""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway.checkpoint import (
    CHECKPOINT,
    METADATA,
    SAVEPOINT,
    CheckpointMetadata,
    SubtaskEntry,
    VertexEntry,
    encode_metadata,
)
from sluiceway.cli.resume_hints import tell_of_checkpoint
from sluiceway.config.settings import Settings
from sluiceway.runtime.jobmanager.newest_checkpoint import note_stop
from sluiceway_filesystem._storage import open_storage

COUNT = 40_000
COUNTING = f"""
    import os

    from sluiceway_files import FilesSink

    flow = sw.Pipeline("counting", parallelism=2)
    numbers = flow.generate(count={COUNT}, rate=int(os.environ["RATE"]))
    counts = numbers.key_by(lambda v: v % 10).count().uid("counts")
    counts.sink(FilesSink.json_lines("out"))
"""
KEPT = ("--checkpoint-interval", "50ms", "--checkpoints", "kept", "--restart", "none")
TOLD = re.compile(r"^found checkpoint (\d+) of an earlier run of 'counting', of .* --from (\S+)$", re.M)


def workers_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if above == pid and b"sluiceway.entrypoint.worker" in line:
                found.append(int(entry.name))
    return found


def written(place: Path) -> dict[int, list[int]]:
    counts: dict[int, list[int]] = defaultdict(list)
    for file in (place / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count = json.loads(line)
            counts[key].append(count)
    return {key: sorted(seen) for key, seen in counts.items()}


def test_the_hint_names_the_savepoint_elsewhere_that_the_job_was_stopped_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind, at in (("kept/one", CHECKPOINT, 10), ("elsewhere/last", SAVEPOINT, 11)):
        subtasks = (SubtaskEntry(index=0),)
        vertex = VertexEntry(uid="n", name="n", parallelism=1, max_parallelism=1, subtasks=subtasks)
        metadata = CheckpointMetadata(
            job_name="job",
            job_id="job",
            checkpoint_id=at,
            kind=kind,
            triggered_ms=0,
            completed_ms=at,
            vertices=(vertex,),
            properties={"run": "a", "stops": kind == SAVEPOINT},
        )
        (place / name).mkdir(parents=True)
        (place / name / METADATA).write_bytes(encode_metadata(metadata))
    note_stop(open_storage(str(place / "kept")), "a", "job", str(place / "elsewhere/last"), 12)
    tell_of_checkpoint(Settings(checkpoints=str(place / "kept")), "job")
    told = capsys.readouterr().err
    assert told.startswith("found savepoint 11 of an earlier run of 'job', of ")
    assert told.endswith(f" To resume from it: --from {place}/elsewhere/last\n")


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_next_run_says_from_where_it_could_go_on(start: Any, write: Any, place: Path, workers: str) -> None:
    write("job.py", COUNTING)
    (place / "temporary").mkdir()

    def run(*options: str, rate: int = 20_000) -> Any:
        environment = {"TMPDIR": str(place / "temporary"), "RATE": str(rate)}
        return start("run", "--workers", workers, *options, "job.py", **environment)

    first = run(*KEPT, rate=40)  # it would take minutes
    until(lambda: [f for f in place.glob("kept/*/chk-*/metadata.json") if int(f.parent.name[4:]) > 3])
    below = [os.pidfd_open(pid) for pid in workers_of(first.pid)]
    assert len(below) == int(workers)
    first.send_signal(signal.SIGKILL)
    _, said = first.communicate(timeout=PATIENT_S)
    assert "found checkpoint" not in said
    for worker in below:
        assert select.select([worker], [], [], PATIENT_S)[0], "workers end by themselves"
        os.close(worker)
    assert list((place / "temporary").glob("sluiceway-*")) == [], "nothing of them is left"

    _, said = run("--quiet", *KEPT).communicate(timeout=PATIENT_S)
    assert "found checkpoint" not in said
    _, said = run("--no-progress", *KEPT).communicate(timeout=PATIENT_S)
    assert "already holds" in said, "a run that begins anew does not write beside what was there"
    (told,) = TOLD.findall(said)
    assert told[1] == f"{place}/kept/" + told[1].split("/kept/")[1]
    assert told[1].endswith(f"/chk-{told[0]}")

    again = run("--no-progress", *KEPT, "--from", told[1])
    _, said = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, said
    assert "found checkpoint" not in said, "it goes on from it"
    assert written(place) == {key: list(range(1, COUNT // 10 + 1)) for key in range(10)}

    _, said = run("--no-progress", *KEPT).communicate(timeout=PATIENT_S)
    assert "found checkpoint" not in said, "that run has come to its end"
