"""A standby leads the jobs when the job manager has died, and clients find it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway import Pipeline
from sluiceway.config.settings import Settings
from sluiceway.errors import SluicewayError
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.election import FileLeaderElection
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.clients import CancelJob, StopJob, SubmitProgram
from sluiceway.runtime.messages.pickling import dump

PROGRAMS = {
    "counting": """
        import sluiceway as sw
        from sluiceway_files import FilesSink

        flow = sw.Pipeline("counting", parallelism=2)
        numbers = flow.generate(rate=2000)
        numbers.key_by(lambda v: v % 10).count().uid("counts").sink(FilesSink.json_lines("out"))
    """,
    "held": """
        import os, threading
        import sluiceway as sw
        from sluiceway_files import FilesSink

        def wait(value):
            while os.path.exists("hold"):
                threading.Event().wait(0.01)
            return value

        flow = sw.Pipeline("held")
        numbers = flow.generate(rate=500).map(wait)
        numbers.key_by(lambda v: v % 10).count().uid("counts").sink(FilesSink.json_lines("out"))
    """,
    "quick": """
        import sluiceway as sw
        flow = sw.Pipeline("quick")
        flow.from_collection(range(10)).print()
    """,
}
INTERVAL = ("--checkpoint-interval", "100ms")


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(dedent(text))


def job_graph() -> Any:
    flow = Pipeline("quick")
    flow.from_collection(range(10)).print()
    return job_graph_of(flow.graph(Settings()), default_manager().services())


def kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([process], [], [], PATIENT_S)[0]
    os.close(process)


def begin(cluster: Any, *arguments: str, standby: int = 1) -> dict[str, Any]:
    """Start a cluster; its status when as many as wanted stand by."""
    started = cluster("cluster", "start", "--standby", str(standby), *arguments)
    assert started.returncode == 0, started.stderr
    some = f"{standby} job manager{'s' * (standby != 1)} standing by"
    assert started.stdout.splitlines()[0].endswith(some)
    return stood_by(cluster, standby)


def stood_by(cluster: Any, standby: int = 1) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        told: dict[str, Any] = cluster.json("cluster", "status")
        return told if len(told["standbys"]) == standby else None

    found: dict[str, Any] = cluster.until(look)
    return found


def submit(cluster: Any, *arguments: str) -> str:
    done = cluster("submit", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.strip())


def completed(cluster: Any, job: str) -> list[int]:
    told = json.loads(cluster("checkpoints", "history", job, "--json").stdout)
    return [c["checkpoint"] for c in told if c["status"] == "completed"]


def finish_and_compare(cluster: Any, place: Path, job: str) -> None:
    assert cluster("stop", job).returncode == 0
    assert cluster.ended(job)["status"] == "finished"
    compare(place)


def compare(place: Path) -> None:
    """What was written are all counts from 1, of each key, once."""
    found: dict[int, list[int]] = defaultdict(list)
    for file in (place / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count = json.loads(line)
            found[key].append(count)
    assert len(found) == 10
    for seen in found.values():
        assert sorted(seen) == list(range(1, len(seen) + 1)), "nothing is lost, nothing counts twice"


def test_a_standby_leads_when_the_job_manager_is_killed_and_again_and_again(cluster: Any, place: Path) -> None:
    told = begin(cluster)
    job = submit(cluster, *INTERVAL, "counting.py")
    quick = submit(cluster, "quick.py")
    before = cluster.ended(quick)
    workers = {w["name"]: w["pid"] for w in cluster.json("cluster", "status")["workers"]}
    for lost in range(1, 4):
        last = cluster.until(lambda: completed(cluster, job))[-1]
        (standby,) = told["standbys"]
        kill(told["pid"])
        now = cluster.json("cluster", "status")
        assert now["pid"] == standby["pid"], "the first command after the kill finds the new leader"
        assert now["epoch"] == told["epoch"] + 1
        assert now["recovered"] == [job]
        assert cluster.until(lambda: completed(cluster, job))[0] > last
        told = stood_by(cluster)
        assert {w["name"]: w["pid"] for w in told["workers"]} == workers, "they have come to the new job manager"
        listed = {j["job"]: j for j in told["jobs"]}
        assert listed[quick] == before
        assert listed[job]["restarts"] == lost
        assert told["pid"] == json.loads((place / "home" / "cluster.json").read_text())["pid"]
        (standby,) = told["standbys"]
        shown = cluster("cluster", "status").stdout.splitlines()[-1]
        leads = f"process {told['pid']} leads, with epoch {told['epoch']}"
        assert shown == f"{leads}; standing by, 1 of 1: {standby['pid']}"
    finish_and_compare(cluster, place, job)
    processes = [os.pidfd_open(pid) for pid in (told["pid"], told["standbys"][0]["pid"])]
    assert cluster("cluster", "stop").returncode == 0
    for process in processes:
        assert select.select([process], [], [], 0)[0], "the standby has ended, too"
        os.close(process)
    assert cluster("list").returncode == 3


@pytest.mark.slow
def test_a_kill_during_a_checkpoint_begins_at_the_last_complete_one(cluster: Any, place: Path) -> None:
    told = begin(cluster)
    job = submit(cluster, *INTERVAL, "held.py")
    cluster.until(lambda: completed(cluster, job))
    (place / "hold").touch()

    def under_way() -> bool:
        history = json.loads(cluster("checkpoints", "history", job, "--json").stdout)
        return bool(history[-1]["duration_ms"] is None)

    cluster.until(under_way)
    last = completed(cluster, job)[-1]
    kill(told["pid"])
    (place / "hold").unlink()
    assert cluster.until(lambda: completed(cluster, job))[0] > last
    finish_and_compare(cluster, place, job)


def asked_of_a_silent_leader(
    told: dict[str, Any], start: Callable[..., subprocess.Popen[str]], *arguments: str
) -> subprocess.Popen[str]:
    """A command that has sent its request to a leader that is suspended, and is killed then."""
    os.kill(told["pid"], signal.SIGSTOP)
    command = start(*arguments)
    wait_for_connections(told["pid"], command.pid)
    kill(told["pid"])
    return command


def wait_for_connections(leader: int, client: int) -> None:
    """Wait until a process has a connected Unix socket; what it sends then is not read."""

    def connected() -> bool:
        assert Path(f"/proc/{client}").exists()
        links = []
        for entry in Path(f"/proc/{client}/fd").iterdir():
            try:
                links.append(os.readlink(entry))
            except OSError:
                continue
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        table = Path("/proc/net/unix").read_text().splitlines()[1:]
        return any(line.split()[6] in inodes and line.split()[5] == "03" for line in table)

    until(connected)


@pytest.mark.slow
def test_what_was_asked_of_a_leader_that_dies_is_done_once_by_the_next_one(
    cluster: Any, place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    told = begin(cluster)
    job = submit(cluster, *INTERVAL, "counting.py")
    cluster.until(lambda: completed(cluster, job))
    command = asked_of_a_silent_leader(told, start, "submit", "quick.py")
    assert command.communicate(timeout=PATIENT_S) == ("quick-2\n", "")
    assert [j["name"] for j in cluster.json("list")] == ["counting", "quick"]
    command = asked_of_a_silent_leader(stood_by(cluster), start, "savepoint", "create", job, "saved")
    out, err = command.communicate(timeout=PATIENT_S)
    assert out.startswith(f"{place}/saved/savepoint-"), err
    command = asked_of_a_silent_leader(stood_by(cluster), start, "stop", job, "--savepoint", "last")
    out, err = command.communicate(timeout=PATIENT_S)
    assert out.startswith(f"{place}/last/savepoint-"), err
    assert cluster.ended(job)["status"] == "finished"
    compare(place)


@pytest.mark.slow
def test_requests_that_were_carried_out_and_not_answered_are_not_carried_out_again(cluster: Any) -> None:
    told = begin(cluster)
    with ClusterClient() as client:
        canceled = submit(cluster, *INTERVAL, "counting.py")
        finished = submit(cluster, "quick.py")
        program = dump((job_graph(), Settings()))
        once = SubmitProgram(1, "quick", program, [], "its own key")
        job = client._done(once)
        assert client._done(once) == job
        assert cluster("cancel", canceled).returncode == 0
        for each in (canceled, finished, job):
            cluster.ended(each)
        kill(told["pid"])
        assert client._done(once) == job
        assert client._done(CancelJob(2, canceled, again=True)) == canceled
        assert client._done(StopJob(3, finished, again=True)) == finished
        with pytest.raises(SluicewayError, match="is canceled already"):
            client.cancel(canceled)
        assert [j.job for j in client.status().jobs] == [canceled, finished, job]


@pytest.mark.slow
def test_a_leader_that_is_suspended_for_long_is_killed_and_one_that_wakes_up_in_time_leads_on(
    cluster: Any, place: Path
) -> None:
    told = begin(cluster, "--heartbeat-timeout", "5s")
    job = submit(cluster, *INTERVAL, "counting.py")
    cluster.until(lambda: completed(cluster, job))
    leader, (standby,) = told["pid"], told["standbys"]
    with ClusterClient() as client:
        client.status()
        os.kill(leader, signal.SIGSTOP)
        os.kill(leader, signal.SIGCONT)
        woken = client.status()
    assert (woken.pid, woken.epoch) == (leader, told["epoch"])
    process = os.pidfd_open(leader)
    os.kill(leader, signal.SIGSTOP)
    assert select.select([process], [], [], PATIENT_S)[0], "the standby has killed it"
    os.close(process)
    now = cluster.json("cluster", "status")
    assert (now["pid"], now["epoch"]) == (standby["pid"], told["epoch"] + 1)
    assert f"killed job manager {leader}: it sends no heartbeat" in cluster_log(place)
    cluster.until(lambda: completed(cluster, job))
    finish_and_compare(cluster, place, job)


def cluster_log(place: Path) -> str:
    logs = [place / "home" / "cluster.log", *(place / "home" / "logs").glob("jobmanager.jsonl*")]
    return "".join(path.read_text() for path in logs)


@pytest.mark.slow
def test_a_standby_that_dies_or_hangs_is_replaced_and_no_job_notices(cluster: Any, place: Path) -> None:
    told = begin(cluster, "--heartbeat-timeout", "5s", standby=2)
    job = submit(cluster, *INTERVAL, "counting.py")
    cluster.until(lambda: completed(cluster, job))
    dead, hung = (standby["pid"] for standby in told["standbys"])
    os.kill(hung, signal.SIGSTOP)
    kill(dead)

    def replaced() -> bool:
        pids = {s["pid"] for s in cluster.json("cluster", "status")["standbys"]}
        return len(pids) == 2 and not pids & {dead, hung}

    cluster.until(replaced)
    said = cluster_log(place)
    assert f"the standby (process {dead}) has ended; another one is started" in said
    assert f"killed the standby (process {hung}): it sends no heartbeat" in said
    now = cluster.json("cluster", "status")
    assert (now["pid"], now["epoch"], now["jobs"][0]["restarts"]) == (told["pid"], told["epoch"], 0)
    assert now["problems"] == []
    kill(told["pid"])
    assert cluster.json("cluster", "status")["epoch"] == told["epoch"] + 1
    assert len(stood_by(cluster, 2)["standbys"]) == 2
    finish_and_compare(cluster, place, job)


@pytest.mark.slow
def test_sigterm_of_the_leader_hands_over(cluster: Any, place: Path) -> None:
    told = begin(cluster)
    job = submit(cluster, *INTERVAL, "counting.py")
    cluster.until(lambda: completed(cluster, job))
    os.kill(told["pid"], signal.SIGTERM)
    cluster.until(lambda: cluster.json("cluster", "status")["pid"] == told["standbys"][0]["pid"])
    cluster.until(lambda: completed(cluster, job))
    finish_and_compare(cluster, place, job)


@pytest.mark.slow
def test_files_that_are_damaged_or_cannot_be_written_keep_no_standby_from_leading(
    cluster: Any, place: Path
) -> None:
    told = begin(cluster)
    job = submit(cluster, *INTERVAL, "counting.py")
    cluster.until(lambda: completed(cluster, job))
    home = place / "home"
    before = (home / "cluster.json").read_text()
    (home / "cluster.part").mkdir()  # as on a file system that is read-only, for root, too
    (home / "epoch.part").mkdir()
    (home / "jobs" / "lock").write_text('{"pid": 1, "beg')
    (home / "jobs" / "epoch").write_text("")
    kill(told["pid"])
    now = cluster.json("cluster", "status")
    assert now["pid"] == told["standbys"][0]["pid"]
    assert now["epoch"] > told["epoch"]
    assert (home / "cluster.json").read_text() == before
    assert "cluster.json cannot be written" in cluster_log(place)
    cluster.until(lambda: completed(cluster, job))
    finish_and_compare(cluster, place, job)


@pytest.mark.slow
def test_a_standby_leads_as_soon_as_the_job_store_can_be_written(
    cluster: Any, place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    told = begin(cluster)
    full = place / "home" / "jobs" / ".epoch.part"
    full.mkdir()  # as on a disk that is full: the file cannot be made
    kill(told["pid"])
    cluster.until(lambda: "cannot become the leader, and tries again" in cluster_log(place))
    command = start("cluster", "status", "--json")
    other = start("cluster", "start")
    full.rmdir()
    out, err = command.communicate(timeout=PATIENT_S)
    assert json.loads(out)["pid"] == told["standbys"][0]["pid"], err
    out, err = other.communicate(timeout=PATIENT_S)
    assert f"a cluster is running already (process {told['standbys'][0]['pid']})" in err


def test_standbys_are_for_clusters_in_the_background(cluster: Any) -> None:
    refused = cluster("cluster", "start", "--standby", "1", "--foreground")
    assert refused.returncode == 2
    assert "--standby is for a cluster in the background" in refused.stderr


@pytest.mark.slow
def test_a_leader_whose_lock_another_process_has_ends_at_once_and_touches_nothing(
    cluster: Any, place: Path
) -> None:
    """Somebody has removed the file of the lock, which is the one way to two leaders."""
    cluster("cluster", "start")
    job = submit(cluster, *INTERVAL, "counting.py")
    last = cluster.until(lambda: completed(cluster, job))[-1]
    told = cluster.json("cluster", "status")
    process = os.pidfd_open(told["pid"])
    store = place / "home" / "jobs"
    election = FileLeaderElection(store)

    def wins() -> bool:
        (store / "lock").unlink(missing_ok=True)
        return election.campaign()

    cluster.until(wins)
    entry = (store / f"job-{job}" / "job.json").read_bytes()
    assert election.epoch == told["epoch"] + 1
    assert select.select([process], [], [], PATIENT_S)[0]
    os.close(process)
    assert (store / f"job-{job}" / "job.json").read_bytes() == entry
    assert "this job manager ends at once: another job manager leads the jobs in" in cluster_log(place)
    election.close()
    assert f": {job}" in cluster("cluster", "start").stdout
    now = cluster.json("cluster", "status")
    assert now["epoch"] == told["epoch"] + 2
    assert cluster.until(lambda: completed(cluster, job))[0] > last
    pids = {w["pid"] for w in cluster.json("cluster", "status")["workers"]}
    assert pids == {w["pid"] for w in told["workers"]}, "they have waited for the next job manager"
    finish_and_compare(cluster, place, job)
