"""``sluiceway run FILE:STREAM``, and ``--take``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

PROGRAM = """
    flow = sw.Pipeline("squares")
    numbers = flow.generate()
    squares = numbers.map(lambda n: n * n)
    squares.map(lambda n: 1 // 0).print()
    short = flow.from_collection(["a", "b"])
"""


def test_the_first_records_of_a_stream_are_printed_and_nothing_else_runs(write: Any, sluiceway: Any) -> None:
    write("job.py", PROGRAM)
    result = sluiceway("run", "job.py:squares", "--take", "3")
    assert (result.exit_code, result.stdout) == (0, "0\n1\n4\n")
    assert result.stderr.startswith("squares: canceled after ")


def test_without_take_all_records_are_printed(write: Any, sluiceway: Any) -> None:
    write("job.py", PROGRAM)
    assert sluiceway("run", "-q", "job.py:short").stdout == "a\nb\n"
    shorter = sluiceway("run", "-q", "job.py:short", "--take", "9")
    assert (shorter.exit_code, shorter.stdout, shorter.stderr) == (0, "a\nb\n", "")


def test_what_is_configured_for_the_job_is_not_for_a_look(
    write: Any, sluiceway: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("job.py", PROGRAM)
    for name, value in (("CHECKPOINTS", "kept"), ("CHECKPOINT_INTERVAL", "1h"), ("RESUME", "true")):
        monkeypatch.setenv(f"SLUICEWAY_{name}", value)
    result = sluiceway("run", "-q", "job.py:short")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n"), result.stderr
    assert not (place / "kept").exists()


def test_a_failure_is_told_as_ever(write: Any, sluiceway: Any) -> None:
    write("job.py", PROGRAM + "    broken = short.map(int)\n")
    result = sluiceway("run", "-q", "job.py:broken")
    assert result.exit_code == 1
    assert "record: 'a'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["run", "job.py", "--take", "3"],
            "--take ends after the first records of a stream, and job.py is the whole of 'squares': name",
        ),
        (["run", "job.py:squares", "--take", "0"], "0 is not in the range x>=1"),
        (["run", "job.py:square"], "the Pipeline there is job.py:flow"),
        (["explain", "job.py:squares"], "job.py:squares is a stream, which only 'sluiceway run' takes: name its"),
        (["check", "job.py:squares"], "job.py:squares is a stream, which only 'sluiceway run' takes: name its"),
    ],
)
def test_what_is_refused(write: Any, sluiceway: Any, arguments: list[str], says: str) -> None:
    write("job.py", PROGRAM)
    result = sluiceway(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize("call", ["squares.take(3)", "squares.execute_and_collect()"])
def test_a_script_must_not_run_it_while_it_is_loaded(write: Any, sluiceway: Any, call: str) -> None:
    write("job.py", PROGRAM + f"    {call}\n")
    result = sluiceway("run", "job.py")
    assert result.exit_code == 2
    assert "runs pipeline 'squares' while it is only to be loaded" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("take", [[], ["--take", "1000000000"]])
def test_signals_cancel_it(start: Any, write: Any, number: int, code: int, take: list[str]) -> None:
    write("job.py", PROGRAM)
    process = start("run", "-q", "job.py:squares", *take)
    assert process.stdout.readline() == "0\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENT_S)
    assert process.returncode == code
    assert "cancelling; " in told
