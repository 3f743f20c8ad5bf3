"""Flink and PyFlink beside Sluiceway: reasons to leave them out, and checksums. Nothing is downloaded here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import flinkpeer, peers, pyflinkpeer  # noqa: E402
from benchmarks.flinkpeer import VERSION, Flink  # noqa: E402
from benchmarks.harness import Plan  # noqa: E402
from benchmarks.peerprogram import PeerUnavailableError  # noqa: E402
from benchmarks.pyflinkpeer import PyFlink  # noqa: E402

pytestmark = pytest.mark.docs

FILES = ROOT / "benchmarks" / "peerfiles"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH, with programs of shell scripts."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def program(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def test_without_java_it_is_left_out(tmp_path: Path, programs: Path) -> None:
    with pytest.raises(PeerUnavailableError, match=r"^java is not installed$"):
        Flink(tmp_path / "peers")
    program(programs, "java", "")
    program(programs, "javac", "")
    with pytest.raises(PeerUnavailableError, match=r"is not there, and mvn is not installed to download it$"):
        Flink(tmp_path / "peers")


def test_a_download_that_fails_leaves_nothing_that_looks_complete(tmp_path: Path, programs: Path) -> None:
    for name in ("java", "javac"):
        program(programs, name, "")
    program(programs, "mvn", "echo '[ERROR] no route to host'; exit 1")
    with pytest.raises(PeerUnavailableError, match=r"^mvn failed: \[ERROR\] no route to host$"):
        Flink(tmp_path)
    assert not (tmp_path / f"flink-{VERSION}").exists()


def test_a_jar_that_is_not_the_expected_one_is_not_run(tmp_path: Path, programs: Path) -> None:
    for name in ("java", "javac"):
        program(programs, name, f"touch {tmp_path}/was-run")
    jars = tmp_path / f"flink-{VERSION}"
    jars.mkdir()
    for line in (FILES / "jars.sha256").read_text().splitlines():
        (jars / line.split()[1]).write_bytes(b"other")
    with pytest.raises(PeerUnavailableError, match=rf"not those of jars.sha256: .*flink-core-{VERSION}.jar"):
        Flink(tmp_path)
    assert not (tmp_path / "was-run").exists()


def test_the_program_answers_each_command_with_a_line(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flinkpeer, "_verify", lambda jars, expected: None)
    (tmp_path / f"flink-{VERSION}").mkdir()
    program(programs, "javac", "")
    program(
        programs,
        "java",
        'while read way job source results; do test -z "$results" || echo 7 > $results; echo 1.5; done',
    )
    with closing(Flink(tmp_path)) as flink:
        assert flink.run("windows", tmp_path / "source") == 1.5
        assert flink.check("windows", tmp_path / "source", tmp_path / "results") == ["7"]


def test_version_and_checksums_are_pinned() -> None:
    names = [line.split()[1] for line in (FILES / "jars.sha256").read_text().splitlines()]
    assert {f"flink-core-{VERSION}.jar", f"flink-streaming-java-{VERSION}.jar"} <= set(names)
    assert (FILES / "pom.xml").read_text().count(f"<version>{VERSION}</version>") == 2


@pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not installed")
def test_a_peer_that_cannot_be_run_has_its_reason_in_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(reason: str) -> Callable[[Path], Path]:
        def raising(directory: Path) -> Path:
            raise PeerUnavailableError(reason)

        return raising

    monkeypatch.setattr(flinkpeer, "_jars", unavailable("mvn failed: no route to host"))
    monkeypatch.setattr(pyflinkpeer, "_python", unavailable("pip failed: no matching distribution"))
    monkeypatch.setattr(peers, "_packages", lambda job, path: [])
    rows = list(peers.measure(Plan(runs=1, quick=True, peers=str(tmp_path))))
    reasons = ["mvn failed: no route to host", "pip failed: no matching distribution"]
    assert [(row.values, row.note) for row in rows] == [((), reason) for reason in reasons] * 2
    rows = list(peers.measure(Plan(runs=1, quick=True)))
    assert [(row.values, row.note) for row in rows] == [((), "left out without --peers DIRECTORY")] * 4


def test_an_installation_that_fails_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []

    def failing(command: list[str]) -> None:
        tried.append(command)
        raise PeerUnavailableError("pip failed: no route to host")

    monkeypatch.setattr(pyflinkpeer, "done", failing)
    monkeypatch.setattr(pyflinkpeer.venv, "create", lambda directory, **options: directory.mkdir(exist_ok=True))
    monkeypatch.setattr(pyflinkpeer.shutil, "which", lambda program: program)
    for _ in range(2):
        with pytest.raises(PeerUnavailableError, match=r"^pip failed: no route to host$"):
            PyFlink(tmp_path)
    assert [command[-1] for command in tried] == [f"apache-flink=={pyflinkpeer.VERSION}"] * 2
