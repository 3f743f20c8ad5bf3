"""Every example runs, as people will run it, and its result is what it says."""

import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
# The demo and what needs a broker are programs with tests of their own.
ELSEWHERE = ("demo", "kafka", "columns_shop")
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if not p.stem.startswith(ELSEWHERE))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_the_result_is_right(example: Path) -> None:
    on_spark = example.stem.startswith("spark")
    if on_spark:
        pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    done = run(str(example), "--assert")
    assert done.returncode == 0, done.stderr
    # Spark's JVM warns of the machine's name and of missing native libraries.
    assert done.stderr == "" if not on_spark else "Traceback" not in done.stderr


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


# -- serve_lines.py -----------------------------------------------------------------------------------------


@pytest.fixture
def serving() -> Iterator[Callable[..., tuple[Any, int]]]:
    started: list[Any] = []

    def serve(*arguments: str) -> tuple[Any, int]:
        pipe = subprocess.PIPE
        # Nothing but the standard library: it is run by whatever python3 there is.
        command = [sys.executable, "-S", "examples/serve_lines.py", "--port", "0", *arguments]
        process: Any = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
        started.append(process)
        told = process.stderr.readline().decode()
        assert told.startswith("serving lines on port "), told
        return process, int(told.rsplit(" ", 1)[1])

    yield serve
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_the_line_server_sends_each_line_as_it_comes_and_ends_with_its_input(serving: Any) -> None:
    process, port = serving()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S) as client,
        client.makefile("rb") as received,
    ):
        for line in (b"to be\n", b"or not\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert received.readline() == line
        process.stdin.write(b"the last")
        process.stdin.close()
        assert received.read() == b"the last\n"
    assert process.wait(PATIENT_S) == 0


def test_the_line_server_serves_a_file_and_the_next_client_after_one_that_has_gone(serving: Any) -> None:
    process, port = serving("LICENSE")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S) as client,
        client.makefile("rb") as received,
    ):
        assert received.read() == (ROOT / "LICENSE").read_bytes()
    assert process.wait(PATIENT_S) == 0
    process, port = serving()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S) as client,
        client.makefile("rb") as received,
    ):
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert received.readline() == b"first\n"
    numbers = b"".join(b"%d\n" % n for n in range(200_000))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S) as client,
        client.makefile("rb") as received,
    ):

        def write() -> None:
            with process.stdin:
                process.stdin.write(numbers)

        writer = threading.Thread(target=write)
        writer.start()
        lines = received.readlines()
        writer.join()
    assert lines
    assert lines == numbers.splitlines(keepends=True)[-len(lines) :]
    assert process.wait(PATIENT_S) == 0


def test_the_line_server_says_why_it_cannot_serve() -> None:
    done = run("examples/serve_lines.py", "nowhere.txt")
    assert (done.returncode, done.stderr) == (
        1,
        "serve_lines: [Errno 2] No such file or directory: 'nowhere.txt'\n",
    )
