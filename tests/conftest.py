"""For every test: whoever starts a thread or a process, opens a file or leaves one behind, fails for it.

Also the ports that tests may use.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from effort import FEW, MANY, explores
from hypothesis import settings
from prefork import HELD, KEEPER, Preforked

from sluiceway.runtime.cluster import interpreter_pool
from sluiceway.util import garbage_collector

pytest_plugins = ["sluiceway.testing.pytest_plugin"]

# The same examples in every run, so that whoever changed nothing sees nothing fail; `make test-all` looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=FEW)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=MANY)
settings.load_profile("repeatable")

_PROC = "/proc/self"
_HAS_PROC = os.path.isdir(_PROC)
_EXPLORING_S = 3600
# What is about to end gets this long.
_PATIENT_S = 30.0
# Made once per process by libraries, on first use, and meant to stay.
_LASTING_THREADS = ("fsspecIO", "pytest_timeout")
_LASTING_FILES = ("/dev/urandom", "/dev/null", "/proc/", "/sys/", "anon_inode:[io_uring]")
_LASTING_CHILDREN = ("multiprocessing.resource_tracker", KEEPER)

# A Unix socket's path has at most 107 bytes. The name of a cluster's takes 38 of them, the directories of pytest
# and of its processes about 40.
_LONGEST_PLACE = 12
_LONGEST_NAME = 10

_numbers = itertools.count()

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--started-workers", action="store_true", help="start each worker anew instead of forking it")


def pytest_configure(config: pytest.Config) -> None:
    """Make what tests begin with independent of what this process has inherited.

    A shell without job control starts ``command &`` with SIGINT ignored, and an ignored signal stays ignored in
    children across exec. A handler does not: this process still does nothing on SIGINT, while its children
    begin with the default disposition.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
    # Without cached bytecode each of the hundreds of interpreters that tests start compiles what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Messages say "pip" where a shell finds that of this Python.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_PLACE:
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_AtOnce(config))


class _AtOnce:
    """Printer of why a test fails, at once: a run of hours may not come to its end, where pytest says it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Asked now: hypothesis takes the profile of the command line after this file is read.
        if report.failed and explores():
            terminal = self._config.get_terminal_writer()
            terminal.line()
            terminal.line(f"{report.nodeid} ({report.when}):\n{report.longreprtext}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Start three processes for two cores: tests that run jobs wait for a good part of their time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores * 3 // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the tests of a file together, and the longest first."""
    if config.getoption("dist") != "loadfile":
        return None
    from scheduling import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort what processes of pytest-xdist take from; who runs tests in one process sees the short ones first.

    A property that is tried on a hundred times as many examples has longer until it counts as a hang.
    """
    if explores():
        for item in items:
            if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(_EXPLORING_S))
    if hasattr(config, "workerinput"):
        from scheduling import longest_first

        items[:] = longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect no garbage while tests are collected.

    Nearly all that is made then stays, and each collection would look at all of it again: a tenth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude what collected tests consist of from collections of garbage.

    Many tests collect, and each would look at half a million objects, which takes 0.2 s.
    """
    gc.collect()
    gc.freeze()
    # To count what is frozen takes 20 ms then, at each restore of state; and the count is known to be high.
    garbage_collector._freeze = None


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo that, for tests of what depends on how much is frozen."""
    gc.unfreeze()
    monkeypatch.setattr(garbage_collector, "_freeze", gc.freeze)
    yield
    gc.freeze()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    # Lazily, as a process that a failed test leaves may still use it.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@dataclass(frozen=True)
class _Held:
    """What this process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[str]
    files: frozenset[str]
    left_behind: frozenset[str]

    @classmethod
    def now(cls, temporary: Path) -> _Held:
        return cls(_threads(), _children(), _files(), frozenset(os.listdir(temporary)))

    def beyond(self, earlier: _Held) -> list[str]:
        threads = [f"thread {t.name!r}" for t in self.threads - earlier.threads]
        children = [f"process {c}" for c in self.children - earlier.children]
        files = [f"open {f}" for f in self.files - earlier.files]
        left = [f"temporary file {f!r}" for f in self.left_behind - earlier.left_behind]
        return sorted(threads + children + files + left)


def _threads() -> frozenset[threading.Thread]:
    """Return the threads that were started here: a dummy stands for one of a library that has called Python."""
    started = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
    return frozenset(t for t in started if not t.name.startswith(_LASTING_THREADS))


def _of_py4j() -> frozenset[str]:
    """Return what py4j holds: it opens a connection to Spark's JVM whenever a thread needs one, and keeps it.

    That may be in any test once there is a session, as when an object of Java's is collected.
    """
    client = sys.modules.get("py4j.clientserver")
    if client is None:
        return frozenset()
    held = {
        f"thread {t.name!r}" for t in threading.enumerate() if isinstance(_owner(t), client.ClientServerConnection)
    }
    for one in gc.get_objects():
        if isinstance(one, client.ClientServerConnection) and (number := _number(one.socket)) >= 0:
            with suppress(FileNotFoundError):  # closed since, by a thread of py4j's
                held.add(f"open descriptor {number}: {os.readlink(f'{_PROC}/fd/{number}')}")
    return frozenset(held)


def _owner(thread: threading.Thread) -> Any:
    return getattr(getattr(thread, "_target", None), "__self__", None)


def _number(connection: Any) -> int:
    return -1 if connection is None else int(connection.fileno())


def _children() -> frozenset[str]:
    found: set[str] = set()
    if not _HAS_PROC:
        return frozenset()
    # Twice for each test: text in place of paths is a fifth of the time.
    for thread in os.listdir(f"{_PROC}/task"):
        try:
            pids = _read(f"{_PROC}/task/{thread}/children").split()
        except OSError:  # that thread has ended
            continue
        for pid in map(bytes.decode, pids):
            try:
                command = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if not any(lasting in command for lasting in _LASTING_CHILDREN):
                found.add(f"{pid} {command.strip() or '(ended, never waited for)'}")
    return frozenset(found)


def _read(place: str) -> bytes:
    with open(place, "rb", buffering=0) as file:
        return file.read()


def _files() -> frozenset[str]:
    found: set[str] = set()
    if not _HAS_PROC:
        return frozenset()
    for number in os.listdir(f"{_PROC}/fd"):
        try:
            what = os.readlink(f"{_PROC}/fd/{number}")
        except OSError:  # the listing's own
            continue
        if not what.startswith(_LASTING_FILES) and what not in HELD:
            found.add(f"descriptor {number}: {what}")
    return frozenset(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and call.when == "call":
        item.stash[_failed] = True
    return report


@pytest.fixture(scope="session")
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where everything that asks for a temporary file gets it, so that what stays behind is seen."""
    directory = tmp_path_factory.mktemp("temporary")
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory)
    yield directory
    tempfile.tempdir = before[0]
    if before[1] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[1]


@pytest.fixture(scope="session", autouse=True)
def preforked(request: pytest.FixtureRequest) -> Iterator[Preforked | None]:
    """Have workers of the tests forked rather than started, which takes a tenth of the time."""
    if request.config.getoption("started_workers") or not sys.platform.startswith("linux"):
        yield None
        return
    made = Preforked(interpreter_pool)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter_pool, "_start", made)
        yield made
    made.close()


@pytest.fixture
def started_workers(preforked: Preforked | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers of one test started as outside of tests."""
    if preforked is not None:
        monkeypatch.setattr(interpreter_pool, "_start", preforked.start)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty directory; unlike that of pytest's own fixture, its path has room for Unix sockets."""
    name = re.sub(r"\W", "_", request.node.name.removeprefix("test_"))[:_LONGEST_NAME]
    place = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest, _temporary: Path) -> Iterator[None]:
    """Fails the test that holds more after its end than before its start.

    What fixtures of a wider scope hold is there before the start. A test that failed anyway is left alone.
    """
    before = _Held.now(_temporary)
    yield
    after = _Held.now(_temporary)
    if after.beyond(before) and not request.node.stash.get(_failed, False):
        end, pause = time.monotonic() + _PATIENT_S, threading.Event()
        gc.collect()
        while leaked := _Held.now(_temporary).beyond(before):
            if not (leaked := [one for one in leaked if one not in _of_py4j()]):
                return
            if time.monotonic() < end:
                pause.wait(0.01)
                continue
            pytest.fail("the test leaks " + ", ".join(leaked), pytrace=False)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives TCP ports of 127.0.0.1 that nothing listens on: for a server to take, in this or another process.

    For a server in the test itself, bind port 0 and ask what it became: that cannot collide.
    """
    given: set[int] = set()

    def give() -> int:
        while True:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port: int = s.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return give


@pytest.fixture
def refusing_port() -> Iterator[int]:
    """A TCP port of 127.0.0.1 that refuses connections and stays taken while the test runs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


class _NoDescriptors:
    """No file can be opened in this process."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)


@pytest.fixture
def no_descriptors() -> AbstractContextManager[None]:
    """As long as it is entered, this process has no descriptors left."""
    return _NoDescriptors()


@pytest.fixture(scope="session")
def delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The threads and descriptors that delta-rs and Polars make once per process, and keep."""
    try:
        import polars as pl
        import pyarrow as pa
        from deltalake import write_deltalake
    except ImportError:
        return

    table = tmp_path_factory.mktemp("delta")
    write_deltalake(table, pa.table({"n": [1]}))
    pl.read_delta(str(table))


@pytest.fixture(scope="session")
def iceberg_runtime() -> None:
    """The threads that pyiceberg makes once per process, and keeps."""
    try:
        from pyiceberg.utils.concurrent import ExecutorFactory
    except ImportError:
        return

    executor = ExecutorFactory.get_or_create()
    together = threading.Barrier(executor._max_workers)
    list(executor.map(lambda _: together.wait(_PATIENT_S), range(executor._max_workers)))
