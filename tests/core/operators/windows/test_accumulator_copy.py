"""Which accumulators can be shared by several windows, and copies of the others."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from sluiceway.isolation import all_unchangeable as unchangeable
from sluiceway.isolation import copied as own
from sluiceway.operators.windows.accumulator_copy import merge_of_copies

Pair = namedtuple("Pair", "a b")


class Box:
    def __init__(self, content: list[int]) -> None:
        self.content = content


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1, 2.5, True, None, "x", b"x", Decimal(1), datetime.now(UTC)],
        [(1, 2), ("a", (1.5, None))],
        [Pair(1, "x"), 3],
    ],
)
def test_cannot_be_changed(values: list[Any]) -> None:
    assert unchangeable(values)


@pytest.mark.parametrize("value", [[1], {}, {1}, (1, [2]), Pair(1, (2, [])), Box([]), bytearray()])
def test_can_be_changed(value: object) -> None:
    assert not unchangeable([1, value])


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1, 2}, [[1], [2]], {"a": [1]}, ([1], 2), Pair(1, [2])])
def test_a_copy_shares_nothing_that_can_be_changed(value: Any) -> None:
    copied = own(value)
    assert copied == value
    assert type(copied) is type(value)
    assert not _ids(copied) & _ids(value)


def test_objects_are_copied_with_all_they_hold() -> None:
    box = Box([1])
    copied = own(box)
    copied.content.append(2)
    assert box.content == [1]
    assert own("text") == "text"


def test_a_merge_may_do_what_it_likes() -> None:
    def merge(a: list[int], b: list[int]) -> list[int]:
        a += b
        b.clear()
        return a

    older, newer = [1], [2]
    assert merge_of_copies(merge)(older, newer) == [1, 2]
    assert (older, newer) == ([1], [2])


def _ids(value: Any) -> set[int]:
    """Of everything in it that can be changed in place."""
    if isinstance(value, list | set):
        return {id(value)}.union(*map(_ids, value))
    if isinstance(value, dict):
        return {id(value)}.union(*map(_ids, value.values()))
    return set().union(*map(_ids, value)) if isinstance(value, tuple) else set()
