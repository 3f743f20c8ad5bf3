"""The leak check of tests/conftest.py, seen failing: a pytest of its own runs tests that leak."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENT_S

CONFTEST = Path(__file__).parents[1] / "conftest.py"
BESIDE = [CONFTEST.with_name(name) for name in ("effort.py", "prefork.py")]

TESTS = """
import socket, subprocess, sys, tempfile, threading

stop = threading.Event()
keep = []

def test_thread():
    threading.Thread(target=stop.wait, args=(60,), name="stray thread", daemon=True).start()

def test_process():
    keep.append(subprocess.Popen([sys.executable, "-c", "input('stray process')"], stdin=subprocess.PIPE))

def test_socket():
    keep.append(socket.socket())

def test_temporary_file():
    tempfile.mkdtemp(prefix="stray-directory")

def test_nothing(free_port, refusing_port):
    assert free_port() != refusing_port
    subprocess.run([sys.executable, "-c", ""], check=True)
    with tempfile.TemporaryDirectory(): pass
    threading.Thread(target=lambda: None).start()

def test_failure_that_leaks():
    tempfile.mkdtemp(prefix="of a test that failed")
    assert False

def teardown_module():
    stop.set()
    keep[0].communicate()
    keep[1].close()
"""

INTERRUPTING = """
import os, signal, subprocess, sys

def test_child():
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"up\\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=600)
    assert child.returncode == -signal.SIGINT, said

def test_this_process_still_ignores_it():
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("leaks")
    for file in (CONFTEST, *BESIDE):
        shutil.copy(file, directory)
    conftest = directory / "conftest.py"
    conftest.write_text(conftest.read_text().replace("_PATIENT_S = 30.0", "_PATIENT_S = 0.1"))
    (directory / "test_it.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider", "--basetemp=base", "--rootdir=."],
        cwd=directory,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"COLUMNS": "1000"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENT_S,
    ).stdout


@pytest.mark.parametrize(
    ("test", "leak"),
    [
        ("test_thread", "thread 'stray thread'"),
        ("test_process", "stray process"),
        ("test_socket", "socket:["),
        ("test_temporary_file", "temporary file 'stray-directory"),
    ],
)
def test_a_leak_fails_its_test(output: str, test: str, leak: str) -> None:
    errors = output.split("= ERRORS =")[1]
    section = errors.split(f"teardown of {test} ")[1].split("ERROR at")[0].split("short test summary")[0]
    assert "the test leaks " in section
    assert leak in section


def test_no_other_test_fails_for_leaks(output: str) -> None:
    assert output.splitlines()[-1].startswith("1 failed, 5 passed, 4 errors"), output


def test_children_are_interruptible_where_sigint_was_ignored(tmp_path: Path) -> None:
    for file in (CONFTEST, *BESIDE):
        shutil.copy(file, tmp_path)
    (tmp_path / "test_it.py").write_text(INTERRUPTING)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for: make test &
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=base", "--rootdir=."],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        signal.signal(signal.SIGINT, old)
    assert done.returncode == 0, done.stdout
