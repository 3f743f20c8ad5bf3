"""The command line, in this process and in one of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from subprocess import CompletedProcess
from textwrap import dedent
from typing import Any

import patience
import pytest
from click.testing import CliRunner, Result

from sluiceway.cli.app import app

HEAD = "import sluiceway as sw\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, no option in the environment, no progress however long a job runs.

    No command gets at the cluster of whoever runs the tests: it has a home of its own.
    """
    for name in list(os.environ):
        if name.startswith("SLUICEWAY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sluiceway.cli.progress.PLAIN_INTERVAL_S", float(patience.PATIENT_S))
    return tmp_path


@pytest.fixture
def write(place: Path) -> Callable[..., Path]:
    """``write("wc.py", code)``: a program in the working directory."""

    def write(name: str, code: str, head: str = HEAD) -> Path:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(head + dedent(code), encoding="utf-8")
        return file

    return write


@pytest.fixture
def sluiceway() -> Callable[..., Result]:
    """``sluiceway("run", "wc.py")``: the command, in this process."""
    # Before version 8.2 of click the runner had to be told to keep the two streams apart.
    apart = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return lambda *arguments: CliRunner(**apart).invoke(app, list(arguments), prog_name="sluiceway")


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``start("run", "wc.py")``: the command, in a process that is gone when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluiceway", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Cluster:
    """``cluster("submit", "job.py")``: a command about the cluster of this test, which is in processes of its own.

    The commands are run in this process: one of its own takes longer than what it does.
    """

    def __init__(self, sluiceway: Callable[..., Result]) -> None:
        self._sluiceway = sluiceway

    def __call__(self, *arguments: str) -> CompletedProcess[str]:
        done = self._sluiceway(*arguments)
        return CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    until = staticmethod(patience.until)

    def comes_to_be(self, job: str, *statuses: str) -> dict[str, Any]:
        """Wait until a job has one of these statuses; what is told of it then."""

        def look() -> dict[str, Any] | None:
            jobs = {j["job"]: j for j in self.json("list")}
            return jobs[job] if jobs[job]["status"] in statuses else None

        return dict(self.until(look))

    def ended(self, job: str) -> dict[str, Any]:
        return self.comes_to_be(job, "finished", "failed", "canceled")


@pytest.fixture
def on_terminal(place: Path) -> Callable[..., str]:
    """``on_terminal("explain", "job.py")``: what the command writes to a terminal, in a process of its own.

    Sends SIGTERM when ``until`` has been written. ``ended`` of the fixture has the exit code.
    """

    def run(*arguments: str, until: str = "", **environ: str) -> str:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update({"TERM": "xterm", **environ})
            os.execv(sys.executable, [sys.executable, "-m", "sluiceway", *arguments])
        shown = b""
        try:
            while read := os.read(terminal, 4096):
                shown += read
                if until and until.encode() in shown:
                    os.kill(pid, signal.SIGTERM)
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(terminal)
            run.ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # type: ignore[attr-defined]
        return shown.decode().replace("\r\n", "\n")

    return run


@pytest.fixture
def cluster(sluiceway: Callable[..., Result], place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster of this test; nothing is left of it at its end."""
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    made = Cluster(sluiceway)
    yield made
    made("cluster", "stop")
    made.until(lambda: not [p for p in place.iterdir() if p.name.startswith("sluiceway-")])
