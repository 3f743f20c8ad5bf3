"""The Makefile and .ci/run, without doing the work; and one fresh clone that does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = [
    "demo",
    "demo-spark",
    "kafka",
    "test",
    "test-columns",
    "test-jobs",
    "test-plugins",
    "test-web",
    "test-docs",
    "test-kafka",
    "test-pyspark",
    "test-all",
    "lint",
    "format",
    "bench",
    "bench-readme",
    "screenshot",
    "vendored",
    "docs",
    "clean",
    "help",
]

pytestmark = [pytest.mark.docs, pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")]


def make(directory: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    # What the command line of a make that runs these tests has set is in the environment, too.
    inherited = ("ARGS", "MFLAGS", "PYSPARK", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in inherited}
    environment["PATH"] = path or environment["PATH"]
    return subprocess.run(
        ["make", *arguments],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile beside a pyproject.toml, and nothing else."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.fixture
def set_up(project: Path) -> Path:
    """As after everything was installed."""
    (project / ".venv" / "bin").mkdir(parents=True)
    for name in ("bin/python", ".demo", ".dev", ".docs", ".kafka", ".spark"):
        (project / ".venv" / name).touch()
    os.utime(project / "pyproject.toml", (0, 0))
    return project


def test_help_is_the_default_and_lists_every_target() -> None:
    printed = make(ROOT).stdout
    assert sorted(re.findall(r"^  make ([a-z-]+) +\S", printed, re.M)) == sorted(TARGETS)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony
    assert sorted(phony[1].split()) == sorted(TARGETS)


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "demo-spark",
        "kafka",
        "test",
        "test-columns",
        "test-jobs",
        "test-plugins",
        "test-web",
        "test-docs",
        "test-kafka",
        "test-all",
        "lint",
        "format",
        "bench",
        "docs",
    ],
)
def test_a_fresh_tree_is_set_up_first(project: Path, target: str) -> None:
    steps = make(project, "-n", "PYTHON=python3", target).stdout
    made, installed = steps.partition("python3 -m venv .venv\n")[1:]
    assert made
    extra = {"demo": "zmq,web", "demo-spark": "zmq,spark", "docs": "docs", "kafka": "kafka"}.get(target, "dev")
    assert f"--editable '.[{extra}]'" in installed.splitlines()[0]
    assert len(installed.splitlines()) > 2


@pytest.mark.parametrize("target", ["demo", "demo-spark", "kafka", "test", "lint", "bench", "docs"])
def test_nothing_is_installed_twice(set_up: Path, target: str) -> None:
    assert "pip" not in make(set_up, "-n", target).stdout


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_changed_project_file_is_installed(set_up: Path, target: str) -> None:
    os.utime(set_up / "pyproject.toml")
    for stamp in (".demo", ".dev"):
        os.utime(set_up / ".venv" / stamp, (1, 1))
    printed = make(set_up, "-n", target).stdout
    assert "pip" in printed
    assert "-m venv" not in printed


def test_a_path_with_spaces_is_one_word(set_up: Path) -> None:
    (set_up / "contrib" / "sluiceway-sqlite").mkdir(parents=True)
    for tool in ("ruff", "mypy", "lint-imports"):
        (set_up / ".venv" / "bin" / tool).write_text("#!/bin/sh\n")
        (set_up / ".venv" / "bin" / tool).chmod(0o755)
    result = make(set_up.rename(f"{set_up} with spaces"), "lint")
    assert result.returncode == 0, result.stdout


def test_no_python_is_told(project: Path) -> None:
    result = make(project, "PYTHON=", "demo")
    assert result.returncode != 0
    assert "Python 3.11 or newer with venv is needed and was not found. Name it: make PYTHON=" in result.stdout
    assert not (project / ".venv").exists()


def test_an_old_python_is_passed_over(project: Path) -> None:
    tools = project / "tools"
    tools.mkdir()
    for name, answer in (("python3", 1), ("python3.13", 1), ("python3.12", 0)):
        (tools / name).write_text(f"#!/bin/sh\nexit {answer}\n")
        (tools / name).chmod(0o755)
    printed = make(project, "-n", "demo", path=f"{tools}:{os.environ['PATH']}").stdout
    assert "python3.12 -m venv .venv" in printed


def test_each_test_that_is_no_slower_is_run_by_one_of_the_targets(set_up: Path) -> None:
    commands = {
        target: make(set_up, "-n", target).stdout
        for target in ("test", "test-columns", "test-jobs", "test-plugins", "test-web", "test-docs")
    }
    expressions = [re.search(r' -m "(.*)" *$', command, re.M) for command in commands.values()]
    code, columns, jobs, plugins, web, documents = (found[1] for found in expressions if found)
    assert code == columns == jobs == plugins
    elsewhere = re.findall(r" --ignore=(\S+)", commands["test"])
    folders = [
        re.search(r" loadfile (.*) -m ", commands[target])
        for target in ("test-columns", "test-jobs", "test-plugins")
    ]
    assert sorted(elsewhere) == sorted(folder for found in folders if found for folder in found[1].split())
    assert all((ROOT / folder).is_dir() for folder in elsewhere)
    for path in ROOT.glob("tests/**/test_*.py"):  # else none of these would run them
        assert "mark.web" not in path.read_text() or "web" in path.parts or path == Path(__file__), path
    assert code == web.replace(" and web", " and not docs and not web")
    assert code == documents.replace(" and docs", " and not docs and not web")
    assert " -m " not in make(set_up, "-n", "test-all").stdout.replace(" -m pytest", "")


@pytest.mark.parametrize("target", ["test-web", "test-kafka"])
def test_a_target_of_a_few_folders_misses_no_test(set_up: Path, target: str) -> None:
    told = re.search(r" loadfile (.*) -m ", make(set_up, "-n", target).stdout)
    assert told
    mark = f"mark.{target.partition('-')[2]}"
    marked = [path for path in ROOT.glob("tests/**/*.py") if mark in path.read_text()]
    apart = {path for path in marked if "soak" in path.parts or "spark" in path.parts or path == Path(__file__)}
    assert marked
    assert all(any(path.is_relative_to(ROOT / place) for place in told[1].split()) for path in set(marked) - apart)


STEPS = ["lint", "test", "test-columns", "test-jobs", "test-plugins", "test-web", "test-kafka", "test-docs"]


@pytest.mark.parametrize(("failing", "code"), [("", 0), *((step, 1) for step in STEPS)])
def test_ci_runs_all_and_ends_with_the_tests(tmp_path: Path, failing: str, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "made $1"\n[ "$1" != "{failing}" ]\n')
    (tmp_path / "make").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run([tmp_path / ".ci" / "run"], env=environment, cwd="/", capture_output=True, text=True)
    assert result.stdout.splitlines() == [f"made {step}" for step in STEPS]
    assert result.returncode == code


def test_the_programs_that_it_runs_exist() -> None:
    programs = re.findall(r"\$\(BIN\)/python (\S+\.py)", (ROOT / "Makefile").read_text())
    assert programs
    assert [p for p in programs if not (ROOT / p).is_file()] == []


@pytest.mark.slow
def test_the_demo_in_a_fresh_clone(tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    result = make(tmp_path / "clone", "demo", "ARGS=--megabytes 0.2")
    server = re.search(r"\(process (\d+)\)", result.stdout)
    assert server is not None, result.stdout
    os.kill(int(server[1]), signal.SIGTERM)
    assert result.returncode == 0, result.stdout
    assert "all counts agree" in result.stdout
    assert re.search(r"two workers, ZeroMQ .* words/s", result.stdout)
    assert "the same in every way" in result.stdout
    assert "Spark's own batch job       not run: Spark is not installed; make demo-spark" in result.stdout
