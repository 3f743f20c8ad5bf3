"""The command line, in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from sluiceway.cli.app import app

HEAD = "import sluiceway as sw\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no option in the environment."""
    for name in list(os.environ):
        if name.startswith("SLUICEWAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
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
