"""A cluster on this machine whose processes are killed at random, and the job that has to survive it."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sluiceway.runtime.cluster.epoch_fence import EpochFence

__all__ = ["ClusterKills"]

STUCK_S: Final = 600
"""Time after which a job counts as stuck: on a busy machine a broker alone takes more than a minute to start."""


class ClusterKills:
    """One run.

    Args:
        place: a directory for all that it writes.
        name: name of the pipeline.
        pipeline: its program.
        backend: its state backend.
        seed: of what is killed when.
        say: told what happens.
    """

    def __init__(self, place: Path, name: str, pipeline: str, backend: str, seed: int, say: Any = print) -> None:
        self.place = place
        self.worker_kills = 0
        self.manager_kills = 0
        self.recoveries: list[float] = []
        self.restarts = 0
        self.checkpoints = 0
        self.problems: list[str] = []
        self._lots = random.Random(seed)
        self._say = say
        self._name = name
        self._job = f"{name}-1"
        self._backend = backend
        self._environment = {**os.environ, "SLUICEWAY_HOME": str(place / "state"), "TMPDIR": str(place)}
        self._killed_at = 0.0
        (place / f"{name}.py").write_text(pipeline)

    def sluiceway(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command."""
        return subprocess.run(
            [sys.executable, "-m", "sluiceway", *arguments],
            env=self._environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            check=check,
        )

    def start(self) -> None:
        """Start the cluster, or start it again."""
        done = self.sluiceway("cluster", "start", "--workers", "2", "--slots", "2", check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        if done.stderr:
            self.problems.append(done.stderr)

    def run(self, seconds: float) -> None:
        """Submit the job, kill for so long, and let it finish."""
        self.start()
        options = {
            "--state-backend": self._backend,
            "--checkpoint-interval": "1s",
            "--checkpoints": str(self.place / "checkpoints"),
            "--restart": "fixed-delay:100000:100ms",
        }
        submitted = self.sluiceway(
            "submit", *(part for option in options.items() for part in option), f"{self._name}.py"
        )
        if submitted.stdout.strip() != self._job:
            raise RuntimeError(f"{submitted.stdout}{submitted.stderr}")
        until = time.monotonic() + seconds
        pause = threading.Event()
        self._wait_for_checkpoint(time.monotonic() + STUCK_S)
        while (now := time.monotonic()) < until:
            self._kill()
            if self._lots.random() < 0.3:
                pause.wait(self._lots.random())  # and again, before it has recovered
                self._kill()
            if self._wait_for_checkpoint(time.monotonic() + STUCK_S):
                self.recoveries.append(time.monotonic() - self._killed_at)
            else:
                after = now - until + seconds
                self.problems.append(f"no checkpoint within {STUCK_S} s of a kill, {after:.0f} s after the start")
                self._say(self.sluiceway("list", self._job, check=False).stdout)
            pause.wait(self._lots.expovariate(1 / 2))
        self._before_the_end()
        self.sluiceway("stop", self._job)
        self._finish(pause)

    def _before_the_end(self) -> None:
        """Do what is to be done before the job is stopped, when nothing is killed any more."""

    def _finish(self, pause: threading.Event) -> None:
        for _ in range(10 * STUCK_S):
            (job,) = json.loads(self.sluiceway("list", "--json").stdout)
            if job["ended_ms"]:
                break
            pause.wait(0.1)
        self.restarts = job["restarts"]
        if job["status"] != "finished":
            self.problems.append(f"the job is {job['status']}: {job['failure']}")
        self.sluiceway("cluster", "stop")

    # ---- kills ----------------------------------------------------------------------------------------------

    def _status(self) -> dict[str, Any] | None:
        done = self.sluiceway("cluster", "status", "--json", check=False)
        return None if done.returncode else dict(json.loads(done.stdout))

    def _kill(self) -> None:
        told = self._status()
        if told is None:
            self.start()
            return
        workers = [worker["pid"] for worker in told["workers"]]
        self._killed_at = time.monotonic()
        if not workers or self._lots.random() < 0.3:
            self.manager_kills += 1
            _kill(told["pid"])
            if self._lots.random() < 0.2:
                for pid in workers:  # and all else
                    self.worker_kills += 1
                    _kill(pid)
            self.start()
        else:
            self.worker_kills += 1
            _kill(self._lots.choice(workers))

    def _wait_for_checkpoint(self, until: float) -> bool:
        """Until a new checkpoint is complete."""
        pause = threading.Event()
        before = _latest(self.place / "checkpoints")
        while time.monotonic() < until:
            latest = _latest(self.place / "checkpoints")
            if latest > before + 1:  # the next one may have been on its way
                self.checkpoints = latest
                return True
            pause.wait(0.1)
        return False

    def left_over(self) -> list[str]:
        """Processes and directories that should be gone."""
        found = [f"directory {path.name}" for path in self.place.glob("sluiceway-*")]
        return found + [f"process {pid}" for pid in EpochFence(self.place / "state" / "jobs" / "workers").alive()]


def _kill(pid: int) -> None:
    """End a process and wait until it has ended."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], 30)
        finally:
            os.close(process)


def _latest(checkpoints: Path) -> int:
    return max((int(f.parent.name[4:]) for f in checkpoints.glob("*/chk-*/metadata.json")), default=0)
