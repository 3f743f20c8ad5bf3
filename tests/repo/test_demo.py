"""``make demo``: on less text, and with counts that are wrong."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), "--megabytes", "0.2", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_the_demo_counts_right() -> None:
    result = run("--top", "3")
    assert result.returncode == 0, result.stderr
    assert "all counts agree with an independent count" in result.stdout
    assert len(result.stdout.split("most frequent words:\n")[1].split("\n\n")[0].splitlines()) == 3
    assert "finished after" in result.stderr


def test_the_demo_counts_right_in_parallel() -> None:
    result = run("--", "--parallelism", "2")
    assert result.returncode == 0, result.stderr
    assert "all counts agree" in result.stdout


def test_a_pipeline_that_fails_fails_the_demo() -> None:
    result = run("--", "--state-backend", "no-such-thing")
    assert result.returncode == 1
    assert "no-such-thing" in result.stderr
    assert "sluiceway run failed with exit code" in result.stderr


def test_wrong_counts_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    assert demo.agree({"a": 2}, Counter("aa"))
    capsys.readouterr()
    assert not demo.agree({"a": 1, "c": 1}, Counter("aab"))
    printed = capsys.readouterr().out
    assert "3 COUNTS ARE WRONG" in printed
    assert "a: counted 1, should be 2" in printed
    assert "b: counted 0, should be 1" in printed
