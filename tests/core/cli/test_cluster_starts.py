"""Clusters that are started twice at once, stopped while they start, or do not come up."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.runtime.cluster import cluster_start
from sluiceway.runtime.cluster.home import start_lock


def test_of_several_starts_at_once_one_is_refused(
    cluster: Any, place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with start_lock(0):  # until all of them wait
        starts = [start("cluster", "start") for _ in range(3)]
        for each in starts:
            cluster.until(lambda each=each: opens(each.pid, place / "home" / "starting"))
    ended = [(*each.communicate(timeout=PATIENT_S), each.returncode) for each in starts]
    (started,) = (out for out, _, code in ended if code == 0)
    pid = cluster.json("cluster", "status")["pid"]
    assert started.startswith(f"cluster started (process {pid})")
    for _, err, code in ended:
        assert not code or f"a cluster is running already (process {pid})" in err, err
    assert [p.name for p in place.iterdir() if p.name.startswith("sluiceway-")] == [
        Path(json.loads((place / "home" / "cluster.json").read_text())["directory"]).name
    ]
    assert cluster("logs").returncode == 0


def opens(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    files = Path(f"/proc/{pid}/fd")
    for file in files.iterdir():
        try:
            if file.readlink() == path:
                return True
        except OSError:
            continue
    return False


def test_a_cluster_that_is_being_started_is_stopped_when_it_is_up(
    cluster: Any, place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    starting = start("cluster", "start")
    cluster.until(
        lambda: (place / "home" / "cluster.log").exists()
    )  # nobody else starts one, and none is there yet
    stopped = cluster("cluster", "stop")
    assert (stopped.stdout, stopped.stderr) == ("cluster stopped\n", "")
    assert starting.wait(PATIENT_S) in (0, 3)  # it is up, or stopped by the time that it asks how it is
    assert cluster("cluster", "status").returncode == 3


def test_a_job_manager_that_does_not_come_up_in_time_is_not_left_behind(
    cluster: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_and_see_nothing(*what: Any) -> tuple[list[int], list[int], list[int]]:
        """It comes up when nobody waits for it any more."""
        assert select.select(*what)[0]
        return [], [], []

    with monkeypatch.context() as patched:
        patched.setattr(cluster_start, "select", SimpleNamespace(select=wait_and_see_nothing))
        refused = cluster("cluster", "start")
    assert refused.returncode == 3
    assert "the cluster did not start" in refused.stderr
    assert not [p for p in place.iterdir() if p.name.startswith("sluiceway-")]
    assert cluster("cluster", "status").returncode == 3
    started = cluster("cluster", "start")
    assert started.returncode == 0, started.stderr


def test_a_cluster_whose_starter_is_killed_can_be_found(
    cluster: Any, place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    starting = start("cluster", "start")
    cluster.until(lambda: (place / "home" / "cluster.log").exists())
    starting.kill()
    starting.wait()
    again = cluster("cluster", "start")
    assert again.returncode == 0 or "a cluster is running already" in again.stderr, again.stderr
    assert cluster("cluster", "status").returncode == 0
    # One that was killed before it handed its directory over leaves it, empty, for some minutes.
    for left in place.glob("sluiceway-*"):
        with suppress(OSError):
            left.rmdir()


def test_what_a_crash_of_the_machine_leaves_keeps_nobody_from_starting(cluster: Any, place: Path) -> None:
    """Files of processes that are gone, whose ids belong to others by now."""
    home = place / "home"
    (home / "jobs" / "workers").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "jobs").chmod(0o700)
    gone = place / "sluiceway-gone"
    gone.mkdir(mode=0o700)
    for name in ("lock", "waiting", "standby", "manager"):
        (gone / name).touch()
    known = {"directory": str(gone), "secret": "00" * 32, "pid": 1, "log": str(home / "cluster.log")}
    (home / "cluster.json").write_text(json.dumps(known))
    (home / "starting").touch()
    (home / "jobs" / "lock").write_text('{"pid": 1, "began": 0, "epoch": 7, "address": ""}')
    (home / "jobs" / "epoch").write_text("7\n")
    (home / "jobs" / "workers" / "0-worker-1.lock").write_text("1\n")
    refused = cluster("list")
    assert refused.returncode == 3
    assert "its job manager (process 1) is gone" in refused.stderr
    started = cluster("cluster", "start")
    assert started.returncode == 0, started.stderr
    assert cluster.json("cluster", "status")["epoch"] == 8
    assert not gone.exists()


def test_a_home_that_cannot_be_written_is_named(sluiceway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody, root included, can make a directory there.
    monkeypatch.setenv("SLUICEWAY_HOME", "/proc/absent/home")
    for foreground in ((), ("--foreground",)):
        refused = sluiceway("cluster", "start", *foreground)
        assert refused.exit_code == 2
        assert "the home of the cluster, /proc/absent/home, cannot be written: No such file" in refused.stderr
        assert "Set SLUICEWAY_HOME to a directory" in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("foreground", [False, True])
@pytest.mark.parametrize("what", ["epoch", "cluster"])
def test_a_home_on_a_full_disk_is_named_and_the_last_logs_stay(
    cluster: Any, start: Any, place: Path, what: str, foreground: bool
) -> None:
    home = place / "home"
    (home / "logs").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    (home / "logs" / "jobmanager.jsonl").write_text("the last words")
    # Writes to this device fail as those to a full disk.
    (home / f"{what}.part").symlink_to("/dev/full")
    for _ in range(2):
        process = start("cluster", "start", *["--foreground"] * foreground)
        said = process.communicate(timeout=PATIENT_S)[1]
        assert process.returncode == 3, said
        assert "No space left on device" in said
        named = f"the home of the cluster, {home}" if what == "epoch" else str(home / "cluster.json")
        assert f"{named}, cannot be written" in said or f"{named} cannot be written" in said
        assert "Traceback" not in said
    if what == "epoch":
        assert (home / "logs" / "jobmanager.jsonl").read_text() == "the last words"
    (home / f"{what}.part").unlink()
    started = cluster("cluster", "start")
    assert started.returncode == 0, started.stderr


@pytest.mark.parametrize("command", [("cluster", "start"), ("cluster", "status"), ("list",)])
def test_a_user_without_a_home_is_told_what_to_set(
    sluiceway: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def none(path: str) -> str:
        return path

    # As for a user id without an entry in /etc/passwd, in an environment without HOME.
    monkeypatch.setattr("os.path.expanduser", none)
    monkeypatch.delenv("SLUICEWAY_HOME", raising=False)
    refused = sluiceway(*command)
    assert refused.exit_code == 2
    assert "has no home directory for the file of the cluster: set SLUICEWAY_HOME" in refused.stderr
    assert "Traceback" not in refused.stderr
