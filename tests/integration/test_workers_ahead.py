"""Workers whose interpreters were started ahead: like any other, and not used where something has changed."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.runtime.cluster import interpreter_pool as launching
from sluiceway.runtime.cluster.interpreter_pool import AHEAD, MODULE, ahead

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is started ahead"),
    pytest.mark.usefixtures("started_workers"),
]


def asked(function: Callable[[int], Any]) -> Any:
    """What a function returns in a worker."""
    flow = sw.Pipeline("asked")
    out = flow.from_collection([0]).map(function).collect()
    flow.run(workers=1)
    (answer,) = out
    return answer


def pid(_: int) -> int:
    return os.getpid()


def waiting() -> list[subprocess.Popen[bytes]]:
    return [launched.process for launched, *_ in launching._waiting]


def test_a_worker_takes_an_interpreter_that_was_started_ahead() -> None:
    with ahead(1):
        (process,) = waiting()
        assert asked(pid) == process.pid
        assert not waiting()
        assert asked(pid) != process.pid, "it is used once"


def looks(_: int) -> dict[str, Any]:
    """Everything that could differ from a process that was started when it was wanted."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(re.sub(r"\d{3,}", "N", os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # the listing's own
            continue
    return {
        "descriptors": sorted(descriptors),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "path": sys.path,
        "arguments": sys.argv,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "handlers": {n: str(signal.getsignal(n)) for n in signal.valid_signals()},
        "group": os.getpgid(0) == os.getpid(),
        "of the program": [m for m in sys.modules if "test_workers_ahead" in m],
        "stdin": sys.stdin.read(),
    }


def test_it_is_like_any_other(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        now = asked(looks)
        with ahead(1):
            (process,) = waiting()
            then = asked(looks)
            assert process.poll() is not None, "it was the one"
    assert then == now
    assert not any("open" in each for each in then["descriptors"])


def test_it_has_randomness_of_its_own() -> None:
    random.seed(1)
    with ahead(2):
        first, second = (asked(lambda _: random.random()) for _ in range(2))
    random.seed(1)
    assert len({first, second, random.random()}) == 3


def _ignore_usr2() -> Callable[[], object]:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR2, before)


def _other_umask() -> Callable[[], object]:
    before = os.umask(0o027)
    return lambda: os.umask(before)


def _fewer_files() -> Callable[[], object]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _other_variable() -> Callable[[], object]:
    os.environ["AHEAD_TEST"] = "1"
    return lambda: os.environ.pop("AHEAD_TEST")


def _other_directory() -> Callable[[], object]:
    before = os.getcwd()
    os.chdir("/")
    return lambda: os.chdir(before)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (_other_variable, lambda _: os.environ.get("AHEAD_TEST") == "1"),
        (_other_directory, lambda _: os.getcwd() == "/"),
        (_other_umask, lambda _: os.umask(0o027) == 0o027),
        (_ignore_usr2, lambda _: signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN),
        (_fewer_files, lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 777),
    ],
    ids=["environment", "directory", "umask", "signals", "limits"],
)
def test_it_is_not_used_where_the_program_has_changed_what_children_inherit(
    change: Callable[[], Callable[[], object]], seen: Callable[[int], bool]
) -> None:
    with ahead(1):
        (process,) = waiting()
        undo = change()
        try:
            saw, used = asked(lambda n: (seen(n), os.getpid()))
            assert saw
            assert used != process.pid
        finally:
            undo()
        assert process.returncode is not None, "and was ended"


def test_it_is_not_used_after_it_has_ended_or_waited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with ahead(2):
        first, second = waiting()
        second.kill()
        second.wait()
        assert asked(pid) == first.pid
    monkeypatch.setattr(launching, "_STALE_S", -1.0)
    with ahead(1):
        (process,) = waiting()
        assert asked(pid) != process.pid
        assert process.returncode is not None


def test_those_that_are_not_used_end() -> None:
    processes = []

    def fails() -> None:
        with ahead(2):
            processes.extend(waiting())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert len(processes) == min(2, os.cpu_count() or 1)
    assert all(process.returncode is not None for process in processes)
    assert not waiting()


def test_one_whose_parent_has_died_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-m", MODULE, AHEAD], stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_command_line_starts_them_and_they_see_what_the_program_sets(tmp_path: Path) -> None:
    program = """\
import os
import sluiceway as sw
{line}
flow = sw.Pipeline("early")
flow.from_collection([0]).map(lambda _: os.environ.get("EARLY")).print()
"""
    for line, wanted in (('os.environ["EARLY"] = "set"', "set"), ("", "None")):
        (tmp_path / "program.py").write_text(program.format(line=line))
        command = [sys.executable, "-m", "sluiceway", "run", "--workers", "1", "--quiet", "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (wanted, "")
