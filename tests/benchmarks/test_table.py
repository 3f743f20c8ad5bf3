"""The table in text, Markdown and JSON, and the one in README.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.harness import Plan, Row  # noqa: E402
from benchmarks.table import (  # noqa: E402
    BEGIN,
    END,
    Measured,
    as_json,
    as_markdown,
    from_json,
    replace_between_markers,
)

pytestmark = pytest.mark.docs

MEASURED = Measured(
    {"python": "CPython 3", "cores": 2, "load": 0.1},
    ["the machine was busy"],
    Plan(runs=3),
    {
        "chain": [
            Row("chain", "x loop", (0.5, 0.7, 0.6), note="6 M records/s", against="functions", aim=0.9),
            Row("chain", "x loop", (0.2, 0.3, 0.4), note="the same", against="by hand"),
            Row("other", "x loop", (0.1,), against="by hand"),
        ],
        "startup": [Row("memory", "MB", (33.0, 35.0, 34.0), aim=50.0), Row("no such thing", "s", ())],
    },
    {"chain": 0.1, "startup": 0.9},
)


def test_markdown_has_the_other_sides_beside_one_another() -> None:
    assert as_markdown(MEASURED).splitlines() == [
        "Medians and extremes of 3 runs, taken in turn; python CPython 3, cores 2; "
        "load at the start of the benchmarks 0.1 to 0.9. **Warning: the machine was busy.**",
        "",
        "`chain`:",
        "",
        "|  | against functions | against by hand |  |",
        "|---|---|---|---|",
        "| chain | 0.6 (0.5 to 0.7) | 0.3 (0.2 to 0.4) | 6 M records/s |",
        "| other |  | 0.1 |  |",
        "",
        "`startup`:",
        "",
        "|  |  |  |",
        "|---|---|---|",
        "| memory | 34 MB (33 to 35) |  |",
        "| no such thing |  |  |",
    ]


def test_markdown_from_a_file_of_figures_is_the_same() -> None:
    assert as_markdown(from_json(json.loads(json.dumps(as_json(MEASURED))))) == as_markdown(MEASURED)


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_between_markers(page, "new")
    replace_between_markers(page, "newer")
    assert page.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"


@pytest.mark.parametrize("content", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n"])
def test_a_file_without_both_markers_is_left_alone(tmp_path: Path, content: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(content)
    with pytest.raises(ValueError, match="must have the lines"):
        replace_between_markers(page, "new")
    assert page.read_text() == content


def test_the_readme_has_the_markers_and_gets_the_tables(tmp_path: Path) -> None:
    page, figures = tmp_path / "README.md", tmp_path / "figures.json"
    readme = (ROOT / "README.md").read_text()
    page.write_text(readme)
    figures.write_text(json.dumps(as_json(MEASURED)))
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--from-json",
        str(figures),
        "--readme",
        str(page),
        "--markdown",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == as_markdown(MEASURED) + "\n"
    before, _, rest = readme.partition(BEGIN)
    assert page.read_text() == f"{before}{BEGIN}\n\n{as_markdown(MEASURED)}\n\n{END}{rest.partition(END)[2]}"
