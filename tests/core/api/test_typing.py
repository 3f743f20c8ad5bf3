"""The types that a type checker infers along a pipeline, and the mistakes that it finds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluiceway.api.run_options import RunOptions
from sluiceway.config.options import OPTIONS

FOLDER = Path(__file__).parent / "typing"
ROOT = Path(__file__).parents[3]


def mypy(*files: Path) -> list[tuple[str, int, str, str]]:
    """File, line, message and code of every error."""
    options = [
        "--no-error-summary",
        "--no-pretty",
        "--show-error-codes",
        "--config-file",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors = []
    for line in done.stdout.splitlines():
        found = re.fullmatch(r"(.*?):(\d+)(?::\d+)?: error: (.*?)(?:  \[([a-z-]+)\])?", line)
        if found:
            errors.append((Path(found[1]).name, int(found[2]), found[3], found[4] or ""))
    return errors


@pytest.fixture(scope="module")
def errors() -> list[tuple[str, int, str, str]]:
    return mypy(FOLDER / "right.py", FOLDER / "wrong.py")


def test_types_are_inferred_along_a_pipeline(errors: list[tuple[str, int, str, str]]) -> None:
    assert [e for e in errors if e[0] != "wrong.py"] == []


def test_mistakes_are_found(errors: list[tuple[str, int, str, str]]) -> None:
    expected = {}
    for number, line in enumerate((FOLDER / "wrong.py").read_text().splitlines(), 1):
        mark = re.search(r"  # \[([a-z, -]+)\]$", line)
        if mark:
            expected[number] = set(mark[1].split(", "))
    found = {e[1]: e for e in errors if e[0] == "wrong.py"}
    assert sorted(found) == sorted(expected)
    for number, error in found.items():
        assert error[3] in expected[number], error


def test_mistakes_of_a_first_pipeline_are_found() -> None:
    """Records, state, keys, times, sinks and options of the wrong type; each line that is marked, and no other."""
    program = FOLDER / "wrong_programs.py"
    marked = {
        number for number, line in enumerate(program.read_text().splitlines(), 1) if "  # an error: " in line
    }
    assert len(marked) >= 17
    assert {line for _, line, _, _ in mypy(program)} == marked


def test_every_option_of_a_run_is_typed() -> None:
    names = {"from_checkpoint" if name == "from" else name.replace("-", "_") for name in OPTIONS}
    assert RunOptions.__annotations__.keys() == names


def test_the_examples_are_typed() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples
    assert mypy(*examples) == []
