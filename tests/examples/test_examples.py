"""Every example runs, as people will run it, and its result is what it says."""

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The demo is a program of its own with tests of its own.
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if not p.stem.startswith("demo"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_the_result_is_right(example: Path) -> None:
    done = run(str(example), "--assert")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_checks_its_result_only_when_asked(example: Path) -> None:
    text = example.read_text()
    assert '"--assert" in sys.argv' in text
    assert "    assert " in text


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


def test_an_example_through_the_command_line() -> None:
    done = run("-m", "sluiceway", "run", "examples/wordcount.py", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["('to', 1)", "('be', 1)"]
    assert done.stdout.splitlines()[-1] == "('question', 1)"


class _ToBe(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"to be or not to be\n")


@pytest.fixture
def server() -> Iterator[int]:
    with socketserver.TCPServer(("127.0.0.1", 0), _ToBe) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("retries", [0, 2])
def test_the_socket_word_count_through_the_command_line(server: int, retries: int) -> None:
    target = ["run", "examples/socket_wordcount.py", "--quiet"]
    own = ["--host", "127.0.0.1", "--port", str(server), "--retries", str(retries)]
    done = run("-m", "sluiceway", *target, *own)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:6] == ["('to', 1)", "('be', 1)", "('or', 1)", "('not', 1)", "('to', 2)", "('be', 2)"]
    assert lines[-1] == f"('be', {2 * (retries + 1)})"
