"""Tests that take longest are begun first, share a process with their file, and say at once why they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import scheduling
from scheduling import LongestFirst, longest_first


@dataclass
class Item:
    """Test as far as its order depends on it."""

    nodeid: str
    marks: list[str] = field(default_factory=list)

    def iter_markers(self) -> list[pytest.Mark]:
        return [pytest.Mark(name, (), {}, _ispytest=True) for name in self.marks]


def order(*items: Item) -> list[str]:
    given: Any = items
    return [item.nodeid for item in longest_first(given)]


def test_long_tests_come_first() -> None:
    quick, slow, soak = (
        Item("tests/a.py::a"),
        Item("tests/b.py::b", ["slow"]),
        Item("tests/c.py::c", ["soak", "kafka"]),
    )
    assert order(quick, slow, soak) == ["tests/c.py::c", "tests/b.py::b", "tests/a.py::a"]


def test_properties_come_before_examples() -> None:
    quick, explored = Item("tests/a.py::a"), Item("tests/b.py::b", ["hypothesis"])
    assert order(quick, quick, explored) == ["tests/b.py::b", "tests/a.py::a", "tests/a.py::a"]


def test_a_property_that_explores_has_longer_and_a_failure_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "from hypothesis import given, settings, strategies as st\n"
        "def limit(request):\n"
        "    return request.node.get_closest_marker('timeout')\n"
        "@given(st.integers())\n"
        "@settings(max_examples=1)\n"
        "def test_property(request, number):\n"
        "    assert limit(request).args == (3600,)\n"
        "def test_failing():\n"
        "    assert 1 == 2\n"
        "def test_example(request):\n"
        "    assert limit(request) is None\n"
    )
    command = [sys.executable, "-m", "pytest", "-v", "-n", "1", "-p", "conftest"]
    ended = subprocess.run(
        [*command, "--hypothesis-profile", "explore", "--basetemp", "left"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(scheduling.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = ended.stdout.splitlines()
    assert lines[-1].strip("= ").startswith("1 failed, 2 passed"), lines
    told = lines.index("test_some.py::test_failing (call):")
    assert told < max(at for at, line in enumerate(lines) if "PASSED" in line)
    assert any("assert 1 == 2" in line for line in lines[told : told + 10])


def test_files_of_many_tests_come_before_files_of_few() -> None:
    assert order(Item("a.py::a"), Item("b.py::b"), Item("b.py::c")) == ["b.py::b", "b.py::c", "a.py::a"]


def test_a_file_stays_together() -> None:
    slow = Item("a.py::long", ["slow"])
    assert order(Item("b.py::b"), Item("a.py::a"), slow, Item("b.py::c")) == [
        "a.py::a",
        "a.py::long",
        "b.py::b",
        "b.py::c",
    ]


def test_tests_that_share_nothing_are_ordered_singly() -> None:
    soak = Item("tests/simulation/test_memory.py::hour", ["soak"])
    quick = Item("tests/simulation/test_memory.py::minute")
    slow = Item("tests/core/a.py::a", ["slow"])
    assert order(quick, slow, soak) == [soak.nodeid, slow.nodeid, quick.nodeid]


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/core/a.py::A::a", "tests/core/a.py"),
        ("tests/soak/a.py::a[1]", "tests/soak/a.py::a[1]"),
        ("tests/simulation/a.py::a", "tests/simulation/a.py::a"),
    ],
)
def test_units_that_are_handed_out(nodeid: str, unit: str) -> None:
    assert LongestFirst._split_scope(None, nodeid) == unit  # type: ignore[arg-type]


def test_a_process_that_replaces_one_that_died_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text(
        "from scheduling import LongestFirst\n"
        "def pytest_xdist_make_scheduler(config, log):\n"
        "    return LongestFirst(config, log)\n"
    )
    tests = tmp_path / "tests" / "simulation"
    tests.mkdir(parents=True)
    (tests / "test_units.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_that_dies_once(number):\n"
        "    if number == 1 and not os.path.exists('died'):\n"
        "        open('died', 'w').close()\n"
        "        os._exit(1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadfile", "--basetemp", "left"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(scheduling.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    # The test in which the process died counts as failed, and is begun again.
    assert ended.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 4 passed"), ended.stdout
