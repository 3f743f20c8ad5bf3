"""The files in examples/deploy: systemd accepts the units, and the commands in them do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
PAGE = ROOT / "docs" / "howto" / "deploy.md"
COMMAND = Path(sys.executable).parent / "sluiceway"
UNITS = ["meters.service", "sluiceway-cluster.service"]
READINGS = 200_000
# Slow, so that it is stopped and killed on the way, and then as fast as it goes.
SLOWLY, AT_ONCE = (str(READINGS), "5000"), (str(READINGS), "0")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in an empty directory, with no more than what a service has in its environment."""
    started: list[subprocess.Popen[str]] = []
    work = tmp_path / "work"
    work.mkdir()

    def begin(command: list[str], **environment: str) -> subprocess.Popen[str]:
        given = {"PATH": os.defpath, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **environment}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=work, env=given, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def unit(name: str) -> RawConfigParser:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / name).read_text())
    # A key that comes twice is not for this parser.
    lines, seen = [], 0
    for line in text.splitlines():
        if line.startswith("Environment="):
            seen += 1
            line = line.replace("Environment=", f"Environment{seen}=")
        lines.append(line)
    parser = RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string("\n".join(lines))
    return parser


def dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", [*UNITS, "Dockerfile"])
def test_the_page_shows_the_files_as_they_are(name: str) -> None:
    shown = re.search(rf'^```\w+ title="{re.escape(name)}"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
    assert shown
    assert shown[1] == (DEPLOY / name).read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    def verify(text: str) -> str:
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    # The command has to be there; where it is installed is for the unit to say.
    text = re.sub(r"/opt/\w+/\.venv/bin/sluiceway", str(COMMAND), (DEPLOY / name).read_text())
    assert verify(text) == ""
    assert "KillMod" in verify(text.replace("KillMode", "KillMod")), "what is wrong would be told"


def resumes_after_everything(begin: Any, command: list[str], place: Path, **environment: str) -> None:
    """Stop it with SIGTERM, kill it, and let it come to its end: each reading is written once."""
    out = place / "readings"
    stopped = begin([*command, *SLOWLY], **environment)
    until(lambda: out.is_dir() and any(out.iterdir()))
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=PATIENT_S)
    assert stopped.returncode == 0, said
    assert re.search(r"^savepoint: ", said, re.M), said

    killed = begin([*command, *SLOWLY], **environment)
    assert "resuming 'meters' from savepoint" in killed.stderr.readline()
    until(lambda: any(name.startswith(".part-") for name in os.listdir(out)))
    killed.kill()
    killed.communicate()

    last = begin([*command, *AT_ONCE], **environment)
    _, said = last.communicate(timeout=PATIENT_S)
    assert last.returncode == 0, said
    lines = [line for file in out.iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == READINGS


def test_the_command_of_the_unit_for_a_job_is_good_for_every_start(begin: Any, tmp_path: Path) -> None:
    service = unit("meters.service")["Service"]
    shutil.copy(ROOT / "examples" / "checkpoints.py", tmp_path / "job.py")
    places = {
        "/opt/meters/.venv/bin/sluiceway": str(COMMAND),
        "/opt/meters/job.py": str(tmp_path / "job.py"),
        "/var/lib/meters": str(tmp_path / "state"),
    }
    command = service["ExecStart"]
    for there, here in places.items():
        assert there in command
        command = command.replace(there, here)
    assert "/opt" not in command
    assert "/var" not in command
    assert service["WorkingDirectory"] == "/var/lib/" + service["StateDirectory"]
    assert (service["KillMode"], service["RestartPreventExitStatus"]) == ("mixed", "2")
    tidies = service["ExecStartPre"].removeprefix("-")
    for there, here in places.items():
        tidies = tidies.replace(there, here)
    for _ in range(2):  # before the first start, too
        tidying = begin(shlex.split(tidies))
        _, said = tidying.communicate(timeout=PATIENT_S)
        assert tidying.returncode == 0, said
        resumes_after_everything(begin, shlex.split(command), tmp_path / "work")
        shutil.rmtree(tmp_path / "work" / "readings")
        shutil.rmtree(tmp_path / "state")
    wrong = begin([*shlex.split(command), "--parallelism", "none"])
    wrong.communicate(timeout=PATIENT_S)
    assert wrong.returncode == int(service["RestartPreventExitStatus"])


def test_the_command_of_the_unit_for_a_cluster_says_when_it_is_ready(begin: Any, tmp_path: Path) -> None:
    service = unit("sluiceway-cluster.service")["Service"]
    command = service["ExecStart"].replace("/opt/sluiceway/.venv/bin/sluiceway", str(COMMAND))
    given = dict(service[key].split("=", 1) for key in service if key.startswith("Environment"))
    assert given == {"SLUICEWAY_HOME": "/var/lib/sluiceway", "TMPDIR": "/run/sluiceway"}
    assert (service["StateDirectory"], service["RuntimeDirectory"]) == ("sluiceway", "sluiceway")
    here = {name: str(tmp_path / name) for name in given}
    for place in here.values():
        Path(place).mkdir()
    assert service["Type"] == "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(PATIENT_S)
        process = begin(shlex.split(command), NOTIFY_SOCKET=str(tmp_path / "notify"), **here)
        assert notified.recv(100) == b"READY=1"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, said
    assert "with up to 2 workers of 2 slots" in said
    assert os.listdir(here["TMPDIR"]) == []


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_make_an_environment_in_which_the_job_runs(begin: Any, tmp_path: Path) -> None:
    """What Docker would do itself (the base image, the user, the volume) is left out."""
    places = {"/opt/sluiceway": tmp_path / "opt", "/data": tmp_path / "work", "/wheels": tmp_path / "wheels"}
    places["/app"] = tmp_path / "app"

    def here(text: str) -> str:
        return re.sub("|".join(places), lambda match: str(places[match[0]]), text)

    wheels = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(places["/wheels"])]
    subprocess.run([*wheels, str(ROOT)], check=True, capture_output=True)
    steps = dockerfile()
    assert [word for word, _ in steps if word not in ("RUN", "COPY", "ENV")] == [
        "FROM",
        "USER",
        "WORKDIR",
        "VOLUME",
        "STOPSIGNAL",
        "CMD",
    ]
    assert [rest for word, rest in steps if word == "COPY"] == ["wheels /wheels", "job.py /app/job.py"]
    places["/app"].mkdir()
    shutil.copy(ROOT / "examples" / "checkpoints.py", places["/app"] / "job.py")
    assert ("WORKDIR", "/data") in steps, "relative paths are in the volume"
    for rest in [rest for word, rest in steps if word == "RUN"]:
        if "useradd" not in rest:
            words = [sys.executable if w == "python" else w for w in shlex.split(here(rest))]
            subprocess.run(["sh", "-c", " ".join(words)], check=True, capture_output=True)  # as Docker does
    given = dict(rest.split("=", 1) for word, rest in steps if word == "ENV")
    (command,) = [json.loads(here(rest)) for word, rest in steps if word == "CMD"]
    resumes_after_everything(begin, command, tmp_path / "work", **given)
