"""Tests that take longest are begun first, and share a process with their file unless they share nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
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
