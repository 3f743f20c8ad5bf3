"""The job manager is killed and started again: its jobs go on from their last checkpoint, or are told of."""

from __future__ import annotations

import json
import os
import select
import signal
from collections import defaultdict
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.runtime.cluster.job_store import JobStore

PROGRAMS = {
    "counting": """
        import sluiceway as sw
        from sluiceway_files import FilesSink

        flow = sw.Pipeline("counting", parallelism=2)
        numbers = flow.generate(rate=2000)
        numbers.key_by(lambda v: v % 10).count().uid("counts").sink(FilesSink.json_lines("out"))
    """,
    "copying": """
        import sluiceway as sw
        from sluiceway_files import FilesSink, FilesSource

        flow = sw.Pipeline("copying")
        flow.source(FilesSource.text("words*.txt")).sink(FilesSink.text("copied"))
    """,
    "plain": """
        import sluiceway as sw
        flow = sw.Pipeline("plain")
        flow.generate(rate=100).print()
    """,
    "quick": """
        import sluiceway as sw
        flow = sw.Pipeline("quick")
        flow.from_collection(range(10)).print()
    """,
    "module": """
        import sluiceway as sw
        import own_words
        flow = sw.Pipeline("module")
        flow.generate(rate=100).map(own_words.same).print()
    """,
}


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(dedent(text))
    (place / "own_words.py").write_text("def same(value):\n    return value\n")


def kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([process], [], [], PATIENT_S)[0]
    os.close(process)


def kill_job_manager(cluster: Any) -> None:
    pid = cluster.json("cluster", "status")["pid"]
    kill(pid)
    refused = cluster("list")
    assert refused.returncode == 3
    assert refused.stderr == (
        f"error: no cluster is running: its job manager (process {pid}) is gone. Start it again with sluiceway "
        "cluster start, and its jobs are recovered\n"
    )


def processes(cluster: Any) -> list[int]:
    return sorted(worker["pid"] for worker in cluster.json("cluster", "status")["workers"])


def submit(cluster: Any, *arguments: str) -> str:
    done = cluster("submit", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.strip())


def completed(cluster: Any, job: str) -> list[int]:
    told = json.loads(cluster("checkpoints", "history", job, "--json").stdout)
    return [c["checkpoint"] for c in told if c["status"] == "completed"]


def written(place: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for file in (place / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count = json.loads(line)
            found[key].append(count)
    return found


def test_a_job_goes_on_from_its_last_checkpoint(cluster: Any, place: Path) -> None:
    cluster("cluster", "start")
    job = submit(cluster, "--checkpoint-interval", "100ms", "counting.py")
    last = cluster.until(lambda: completed(cluster, job))[-1]
    workers = processes(cluster)
    store = place.joinpath("home", "jobs")
    for _ in range(2):
        kill_job_manager(cluster)
        (run,) = (store / "checkpoints").iterdir()
        broken = run / f"chk-{last + 500}" / "0-0-0.state"
        broken.parent.mkdir()
        broken.touch()
        started = cluster("cluster", "start")
        assert started.returncode == 0, started.stderr
        assert started.stdout.splitlines()[-1] == f"recovered 1 job of the job store {store}: {job}"
        assert started.stderr == ""
        first = cluster.until(lambda: completed(cluster, job))[0]
        assert first > last + 500, "numbers of checkpoints go on, those of incomplete ones included"
        assert not broken.exists(), "which are removed"
        last = first
        assert processes(cluster) == workers, "they have come to the new job manager"
    (told,) = cluster.json("list")
    assert told["restarts"] == 2
    assert [f["cause"] for f in told["failures"]] == [
        "JobManagerLostError: the job manager ended while it ran"
    ] * 2
    assert cluster("stop", job).returncode == 0
    assert cluster.ended(job)["status"] == "finished"
    counts = written(place)
    assert len(counts) == 10
    for seen in counts.values():
        assert sorted(seen) == list(range(1, len(seen) + 1)), "nothing is lost, nothing counts twice"
    # Whoever asks in the turn in which it ends is answered before the store is tidied up.
    cluster.until(lambda: not list((store / "checkpoints").iterdir()))


def test_a_job_that_had_its_last_savepoint_goes_on_from_that(cluster: Any, place: Path) -> None:
    cluster("cluster", "start")
    job = submit(cluster, "--checkpoint-interval", "100ms", "--checkpoints", "kept", "counting.py")
    cluster.until(lambda: completed(cluster, job))
    entry = place.joinpath("home", "jobs", f"job-{job}")
    before = {file.name: file.read_bytes() for file in entry.iterdir()}
    saved = cluster("stop", job, "--savepoint", "saved").stdout.strip()
    assert saved.startswith(f"{place}/saved/savepoint-")
    assert json.loads((entry / "job.json").read_text())["savepoint"] == f"{place}/saved"
    cluster("cluster", "stop")
    # As if the job manager had been killed when the savepoint was complete, and the job's end not written down.
    for name, content in before.items():
        (entry / name).write_bytes(content)
    told = json.loads(before["job.json"])
    (entry / "job.json").write_text(json.dumps({**told, "savepoint": f"{place}/saved"}))
    assert f": {job}" in cluster("cluster", "start").stdout
    last = int(saved.rpartition("-")[2])
    assert cluster.until(lambda: completed(cluster, job))[0] > last
    cluster("stop", job)
    assert cluster.ended(job)["status"] == "finished"
    for seen in written(place).values():
        assert sorted(seen) == list(range(1, len(seen) + 1)), "what came with the savepoint does not come again"


def test_relative_paths_of_files_are_those_of_whoever_submits(
    cluster: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = cluster("cluster", "start", "--workers", "1")
    assert started.returncode == 0, started
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "words.txt").write_text("to\nbe\n")
    monkeypatch.chdir(elsewhere)
    job = submit(cluster, str(place / "copying.py"))
    assert cluster.ended(job)["status"] == "finished"
    (copied,) = (elsewhere / "copied").iterdir()
    assert copied.read_text() == "to\nbe\n"


@pytest.mark.slow
def test_a_worker_that_has_come_to_another_job_manager_is_replaced_when_it_is_killed(
    cluster: Any, place: Path
) -> None:
    cluster("cluster", "start", "--workers", "1")
    job = submit(cluster, "--checkpoint-interval", "100ms", "--restart", "fixed-delay:9:1ms", "plain.py")
    cluster.until(lambda: completed(cluster, job))
    kill_job_manager(cluster)
    cluster("cluster", "start", "--workers", "1")
    cluster.until(lambda: completed(cluster, job))
    (worker,) = processes(cluster)
    kill(worker)

    def is_told() -> bool:
        (told,) = cluster.json("list")
        return f"(process {worker}) has ended" in told["failures"][-1]["cause"]

    # Checkpoints are completed meanwhile: the kill may be noticed later than it was done.
    cluster.until(is_told)
    last = completed(cluster, job)[-1]
    cluster.until(lambda: completed(cluster, job)[-1] > last)
    assert processes(cluster) != [worker]


@pytest.mark.slow
def test_workers_of_another_kind_of_cluster_are_not_taken_over(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1")
    job = submit(cluster, "--checkpoint-interval", "100ms", "plain.py")
    cluster.until(lambda: completed(cluster, job))
    before = processes(cluster)
    kill_job_manager(cluster)
    cluster("cluster", "start", "--workers", "1", "--slots", "3")
    cluster.until(lambda: completed(cluster, job))
    assert processes(cluster) != before


def test_jobs_that_have_ended_stay_listed_and_numbers_go_on(cluster: Any, place: Path) -> None:
    cluster("cluster", "start")
    first = submit(cluster, "quick.py")
    before = cluster.ended(first)
    unsafe = submit(cluster, "plain.py")
    cluster.comes_to_be(unsafe, "running")
    kill_job_manager(cluster)
    assert "goes on" not in cluster("cluster", "start").stdout
    listed = {j["job"]: j for j in cluster.json("list")}
    assert list(listed) == [first, unsafe]
    assert listed[first] == before
    assert listed[unsafe]["status"] == "failed"
    assert "neither checkpoints to resume from nor a restart strategy" in listed[unsafe]["failure"]
    assert f"job {first!r} is finished already" in cluster("cancel", first).stderr
    assert submit(cluster, "quick.py") == "quick-3"


@pytest.mark.slow
def test_a_job_that_is_being_stopped_is_not_begun_again_for_good(cluster: Any, place: Path) -> None:
    cluster("cluster", "start")
    again = submit(cluster, "--restart", "fixed-delay:3:1ms", "plain.py")
    cluster.comes_to_be(again, "running")
    assert cluster("cluster", "stop", "--keep-jobs").stdout == "cluster stopped\n"
    assert cluster("list").returncode == 3
    assert f": {again}" in cluster("cluster", "start").stdout
    cluster.comes_to_be(again, "running")
    entry = place / "home" / "jobs" / f"job-{again}" / "job.json"
    kill_job_manager(cluster)
    told = json.loads(entry.read_text())
    assert told["begun"]
    entry.write_text(json.dumps({**told, "wanted": "cancel"}))
    assert "goes on" not in cluster("cluster", "start").stdout
    assert cluster.json("list")[0]["status"] == "canceled"


def test_an_entry_that_cannot_be_read_is_named_and_keeps_no_other_from_going_on(cluster: Any, place: Path) -> None:
    store = place / "store"
    cluster("cluster", "start", "--job-store", "store")
    interval = ("--checkpoint-interval", "100ms")
    broken = [submit(cluster, *interval, name) for name in ("plain.py", "counting.py", "module.py")]
    good = submit(cluster, *interval, "plain.py")
    kill_job_manager(cluster)
    (store / f"job-{broken[0]}" / "job.json").write_text("{")
    program = store / f"job-{broken[1]}" / "program"
    program.write_bytes(program.read_bytes()[:-1])
    (place / "own_words.py").unlink()
    started = cluster("cluster", "start", "--job-store", "store")
    assert started.stdout.splitlines()[-1] == f"recovered 1 job of the job store {store}: {good}"
    first, second, third = (line for line in started.stderr.splitlines() if line.startswith("warning: "))
    assert first.startswith(f"warning: {store}/job-{broken[0]}/job.json cannot be read, and is left alone: ")
    damaged = f"JobStoreError: {store}/job-{broken[1]}/program is damaged: its checksum is wrong"
    assert second == f"warning: job {broken[1]!r} cannot be recovered: {damaged}"
    assert third.startswith(
        f"warning: job {broken[2]!r} cannot be recovered: ModuleNotFoundError: No module named 'own_words'"
    )
    assert f"stays in the job store {store}" in started.stderr
    assert cluster("cluster", "status").stderr == started.stderr
    listed = {j["job"]: j["status"] for j in cluster.json("list")}
    assert listed[broken[1]] == listed[broken[2]] == "failed"
    assert cluster("cancel", broken[1]).returncode == 0
    cluster("cluster", "stop")
    (place / "own_words.py").write_text("def same(value):\n    return value\n")
    started = cluster("cluster", "start", "--job-store", "store")
    assert started.stdout.splitlines()[-1] == f"recovered 1 job of the job store {store}: {broken[2]}"
    assert {j["job"]: j["status"] for j in cluster.json("list")}[broken[1]] == "canceled"


def test_a_job_store_is_its_owners_alone_and_of_one_job_manager(cluster: Any, place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    refused = cluster("cluster", "start", "--job-store", "open")
    assert refused.returncode != 0
    assert f"others than you may write to the job store {place}/open, and programs in it are run" in refused.stderr
    assert "Traceback" not in refused.stderr
    with JobStore(place / "taken"):
        refused = cluster("cluster", "start", "--job-store", "taken")
    assert f"another job manager uses the job store {place}/taken" in refused.stderr
