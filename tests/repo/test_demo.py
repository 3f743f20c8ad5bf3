"""``make demo``: on less text, and with counts that are wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.docs

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
FILES_DEMO = DEMO.with_name("demo_files.py")


ROW = r"\n  {} +[0-9.]+ s +[0-9,]+ words/s\n"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), "--megabytes", "0.2", "--no-pages", *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | environment
    )


@pytest.fixture
def demo() -> ModuleType:
    return load(DEMO)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where its dataclass looks for the names in its annotations
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module


def test_the_demo_counts_right_in_one_process_and_on_workers_over_both_transports() -> None:
    result = run("--top", "3")
    assert result.returncode == 0, result.stderr
    assert "all counts agree with an independent count" in result.stdout
    assert len(result.stdout.split("most frequent words:\n")[1].split("\n\n")[0].splitlines()) == 3
    assert len(re.findall("demo-wordcount: finished after", result.stderr)) == 3
    for transport in ("shm", "zmq"):
        assert f" --workers 2 --parallelism 2 --transport {transport} " in result.stdout
    for way in ("in one process", "two workers, shared memory", "two workers, ZeroMQ"):
        assert re.search(ROW.format(way), result.stdout), result.stdout


def test_with_options_there_is_one_run() -> None:
    result = run("--", "--parallelism", "2")
    assert result.returncode == 0, result.stderr
    assert "all counts agree" in result.stdout
    assert re.search(ROW.format("--parallelism 2"), result.stdout), result.stdout
    assert len(re.findall("demo-wordcount: finished after", result.stderr)) == 1


def test_a_transport_that_is_not_there_is_passed_over_with_the_reason() -> None:
    result = run(SLUICEWAY_DISABLE_PLUGINS="zmq,shm")
    assert result.returncode == 0, result.stderr
    assert (
        "  two workers, ZeroMQ         not run: its plugin is not loaded (sluiceway plugins list)\n"
        in result.stdout
    )
    assert "  two workers, shared memory  not run: its plugin is not loaded" in result.stdout


def test_a_library_that_is_missing_is_named_with_what_installs_it(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = {"kind": "transport", "name": "shm", "missing": [], "install": ""}
    zmq = {"kind": "transport", "name": "zmq", "missing": ["zmq"], "install": 'pip install "sluiceway[zmq]"'}
    listed = subprocess.CompletedProcess([], 0, stdout=json.dumps({"offers": [shm, zmq]}))
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: listed)
    assert demo.missing() == {"zmq": 'it needs zmq: pip install "sluiceway[zmq]"'}
    monkeypatch.delattr(demo.os, "memfd_create")
    assert demo.missing()["shm"] == "it needs Linux"


def test_a_pipeline_that_fails_fails_the_demo() -> None:
    result = run("--", "--state-backend", "no-such-thing")
    assert result.returncode == 1
    assert "no-such-thing" in result.stderr
    assert "sluiceway run failed with exit code" in result.stderr


def test_wrong_counts_are_noticed(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.agree(demo.Way("so", [], counts={"a": 2}), Counter("aa"))
    assert demo.agree(demo.Way("not run", []), Counter("aa"))
    assert capsys.readouterr().out == ""
    assert not demo.agree(demo.Way("two workers", [], counts={"a": 1, "c": 1}), Counter("aab"))
    printed = capsys.readouterr().out
    assert "two workers: 3 COUNTS ARE WRONG" in printed
    assert "a: counted 1, should be 2" in printed
    assert "b: counted 0, should be 1" in printed


def test_it_ends_with_a_link_to_pages_about_its_runs() -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    command = [sys.executable, str(DEMO), "--megabytes", "0.05", "--", "--parallelism", "2"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    told = re.search(r"\(process (\d+)\):\n  (http://127.0.0.1:\d+/)\?token=(\S+)\n$", result.stdout)
    assert told is not None, result.stdout
    try:
        request = urllib.request.Request(told[2] + "jobs", headers={"Authorization": f"Bearer {told[3]}"})
        with urllib.request.urlopen(request) as answer:
            assert [job["status"] for job in json.load(answer)["jobs"]] == ["FINISHED"]
    finally:
        os.kill(int(told[1]), signal.SIGTERM)


# ---- files, in every way ---------------------------------------------------------------------------------------

FILES_ROW = r"\n  {} +[0-9.]+ s\n"


def test_the_demo_ends_with_files_in_every_way_that_is_installed() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    ending = result.stdout.split("One pipeline, wordcount_files.py, wherever it can run: 0.2 MB in 4 files")[1]
    assert re.search(r"[0-9,]+ words, [0-9,]+ totals: the same in every way", ending)
    for way in ("in one process", "two workers"):
        assert re.search(FILES_ROW.format(way), ending), ending
    if importlib.util.find_spec("pyspark") is None:
        for way in ("Spark's own batch job", "two workers, run by Spark"):
            assert f"\n  {way:<28}not run: Spark is not installed; make demo-spark installs it" in ending


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_files_are_counted_alike_on_spark() -> None:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    command = [sys.executable, str(FILES_DEMO), "--megabytes", "0.2"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "the same in every way" in result.stdout
    for way in ("in one process", "two workers", "Spark's own batch job", "two workers, run by Spark"):
        assert re.search(FILES_ROW.format(way), result.stdout), result.stdout


def test_wrong_totals_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = load(FILES_DEMO)
    for name, line in (("one", "a 1\nb 2\n"), ("two", "b 2\nthe word 3\n")):
        (tmp_path / name).write_text(line)
    totals = demo.read(tmp_path)
    assert totals == {"a": 1, "b": -1, "the word": 3}
    assert not demo.agree(demo.Way("two workers", [], totals=totals), Counter({"a": 1, "b": 4, "the word": 3}))
    assert "two workers: 1 TOTALS ARE WRONG" in capsys.readouterr().out
    assert demo.agree(demo.Way("two workers", [], totals={"a": 1}), Counter("a"))
    assert demo.agree(demo.Way("not run", []), Counter("a"))
