"""The command as a process: signals, pipes, a terminal, and what it imports."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

ENDLESS = """
    flow = sw.Pipeline("endless")
    flow.generate(rate=200).print()
"""
STUBBORN = """
    import signal, sys

    def wait(x):
        sys.stdout.write("waiting\\n")
        sys.stdout.flush()
        while True:
            signal.pause()

    flow = sw.Pipeline("stubborn")
    flow.from_collection([1]).map(wait).print()
"""
CANCELLING = "SIGTERM: cancelling; SIGKILL ends at once\n"
"""Line with which a run answers SIGTERM."""


def begin(process: subprocess.Popen[str], first: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != first:
        raise AssertionError(f"{line!r} {process.communicate()}")


def test_python_m_sluiceway_is_the_command(start: Any) -> None:
    process = start("version")
    out, _ = process.communicate(timeout=PATIENT_S)
    assert out.startswith("sluiceway ")
    assert process.returncode == 0


def test_so_is_the_installed_script(write: Any) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_collection([1]).print()")
    script = Path(sys.executable).with_name("sluiceway")
    done = subprocess.run(
        [script, "run", "-q", "job.py"], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_ctrl_c_cancels_says_so_and_is_130(start: Any, write: Any) -> None:
    write("job.py", ENDLESS)
    process = start("run", "--no-progress", "job.py")
    begin(process, "0\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 130
    assert err.startswith("cancelling; Ctrl-C again ends at once\nendless: canceled after ")
    assert "Traceback" not in err


def test_ctrl_c_twice_ends_at_once_whatever_the_user_does(start: Any, write: Any) -> None:
    write("job.py", STUBBORN)
    process = start("run", "--no-progress", "job.py")
    begin(process, "waiting\n")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "cancelling; Ctrl-C again ends at once\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENT_S)
    assert (process.returncode, err) == (130, "ended at once\n")


def test_ctrl_c_while_the_pipeline_is_loaded_is_130_too(start: Any, write: Any) -> None:
    write("job.py", "import signal, sys\nprint('loading', flush=True)\nwhile True: signal.pause()")
    process = start("run", "job.py")
    begin(process, "loading\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENT_S)
    assert (process.returncode, err) == (130, "cancelled\n")


def test_an_ignored_ctrl_c_stays_ignored(start: Any, write: Any) -> None:
    write("job.py", ENDLESS)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for: command &
    try:
        process = start("run", "--no-progress", "job.py")
    finally:
        signal.signal(signal.SIGINT, old)
    begin(process, "0\n")
    process.send_signal(signal.SIGINT)
    begin(process, "1\n")
    process.terminate()
    _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 143
    assert err.startswith(f"{CANCELLING}endless: canceled after "), "of Ctrl-C it says nothing"


def test_sigterm_cancels_and_is_143(start: Any, write: Any) -> None:
    write("job.py", ENDLESS)
    process = start("run", "--no-progress", "job.py")
    begin(process, "0\n")
    process.terminate()
    _, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 143
    assert err.startswith(f"{CANCELLING}endless: canceled after ")


@pytest.mark.parametrize("mine", [False, True])
def test_the_reporter_log_is_seen_and_leaves_a_programs_own_logging_alone(
    start: Any, write: Any, mine: bool
) -> None:
    own = "import logging\nlogging.basicConfig(level='INFO', format='mine %(message)s')\n" if mine else ""
    write("job.py", own + "flow = sw.Pipeline('logged')\nflow.from_collection([1]).print()")
    out, err = start("run", "--no-progress", "job.py", "--metrics", "log").communicate(timeout=PATIENT_S)
    assert out == "1\n"
    lines = [line for line in err.splitlines() if "1 record in, 1 out" in line and "finished after" not in line]
    pattern = r"mine logged: \w+, " if mine else r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} logged: \w+, "
    assert len(lines) == 1
    assert re.match(pattern, lines[0]), lines


@pytest.mark.parametrize(
    ("workers", "unbuffered", "options"),
    [
        ("0", "", ()),
        ("0", "1", ()),
        ("0", "", ("--restart", "exponential:1h:1h:6")),
        pytest.param("2", "", (), marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_goes_away_ends_the_job_quietly(
    start: Any, write: Any, workers: str, unbuffered: str, options: tuple[str, ...]
) -> None:
    write("job.py", ENDLESS)
    command = ("run", "--no-progress", "job.py", "--workers", workers, "-p", "1", *options)
    process = start(*command, PYTHONUNBUFFERED=unbuffered)
    begin(process, "0\n")
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=PATIENT_S)
    assert (process.returncode, err) == (141, "")


def test_a_job_without_standard_output_runs(place: Path, write: Any) -> None:
    write("job.py", "flow = sw.Pipeline('quiet')\nflow.from_collection([1]).print()")
    command = f"{shlex.quote(sys.executable)} -m sluiceway run --no-progress job.py >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=PATIENT_S)
    assert done.returncode == 0
    assert done.stderr.startswith("quiet: finished after ")
    assert "Traceback" not in done.stderr


def test_a_working_directory_that_was_removed_is_named(place: Path, write: Any) -> None:
    write("job.py", "flow = sw.Pipeline('gone')\nflow.from_collection([1]).print()")
    command = f"mkdir gone; cd gone; rmdir ../gone; {shlex.quote(sys.executable)} -m sluiceway run job.py"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=PATIENT_S)
    assert (done.returncode, done.stderr) == (
        2,
        "error: the working directory was removed: change to another one\n",
    )


def test_a_plan_whose_reader_goes_away_is_no_error_either(start: Any, write: Any) -> None:
    write(
        "job.py",
        """
        import sys
        flow = sw.Pipeline()
        flow.from_collection([1]).print()
        print("loaded", file=sys.stderr, flush=True)
        sys.stdin.read()
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sluiceway", "explain", "job.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.readline() == "loaded\n"
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate("", timeout=PATIENT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (141, "")


def test_on_a_terminal_the_output_of_workers_takes_the_place_of_the_live_line(
    write: Any, on_terminal: Any
) -> None:
    write(
        "job.py",
        """
        import logging

        def warn(value):
            logging.warning("warned")
            return value

        flow = sw.Pipeline("live")
        flow.generate(count=6, rate=5).map(warn).print()
        """,
    )
    shown = on_terminal("run", "--workers", "1", "job.py")
    left = [line.rpartition("\r\x1b[2K")[2] for line in shown.split("\n")]
    assert [line for line in left if line.isdigit()] == [str(n) for n in range(6)]
    logged = [line for line in left if "warned" in line]
    assert len(logged) == 6
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in logged)


def test_on_a_terminal_a_live_line_runs_under_the_results(write: Any) -> None:
    write("job.py", "flow = sw.Pipeline('live')\nflow.generate(count=12, rate=10).print()")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [sys.executable, "-m", "sluiceway", "run", "job.py"])
    shown = b""
    deadline = time.monotonic() + PATIENT_S
    try:
        while select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0]:
            try:
                read = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            shown += read
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    text = shown.decode().replace("\r\n", "\n")
    live = re.findall(
        r"\r\x1b\[2K(\d.*?\| in .*?/s \| out .*?/s \| busy \d+% \| back-pressured \d+% \| watermark none)", text
    )
    assert len(live) >= 2
    # What a terminal is left with: each line from the last time it was erased on.
    left = [line.rpartition("\r\x1b[2K")[2] for line in text.removesuffix("\n").split("\n")]
    assert left[:12] == [str(n) for n in range(12)]
    assert re.fullmatch(r"live: finished after \d+\.\d s, 12 records in \(\d+/s\), 12 out", left[12])
    assert left[13:] == []


def test_running_a_pipeline_imports_nothing_heavy(write: Any) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_collection([1]).key_by(lambda x: x).count().print()")
    program = (
        "import sys\n"
        "from sluiceway.cli import main\n"
        "try:\n    main(['run', '-q', 'job.py'])\n"
        "finally:\n    print(*sorted(m for m in sys.modules if '.' not in m))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert "sluiceway" in imported
    assert (
        imported & {"asyncio", "fsspec", "pyarrow", "cloudpickle", "rich", "tomllib", "logging", "sqlite3"}
        == set()
    )
