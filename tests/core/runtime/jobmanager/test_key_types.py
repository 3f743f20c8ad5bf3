"""Types of keys that are never equal, and those that may be."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID

import pytest

from sluiceway.runtime.jobmanager.key_types import can_be_equal

User = NewType("User", str)


class Pair(NamedTuple):
    left: int
    right: str


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (int, int, True),
        (int, float, True),
        (int, bool, True),
        (int, Decimal, True),
        (int, str, False),
        (int, Annotated[str, "text"], False),
        (int, User, False),
        (str, User, True),
        (str, bytes, False),
        (str, UUID, False),
        (date, datetime, False),
        (int, int | None, True),
        (str, int | None, False),
        (type(None), int | None, True),
        (int, Any, True),
        (int, object, True),
        (int, Literal["a"], True),
        (int, Level, True),
        (tuple[int, str], Pair, True),
        (tuple[int, str], tuple, True),
        (tuple[int, str], tuple[int, ...], True),
        (tuple[int, str], tuple[float, User], True),
        (tuple[int, str], tuple[int, Any], True),
        (tuple[int, str], tuple[str, int], False),
        (tuple[int, str], tuple[int, str, int], False),
        (tuple[int, tuple[int, int]], tuple[int, tuple[int, str]], False),
        (tuple[int, str], int, False),
    ],
)
def test_types_that_can_be_equal(one: Any, other: Any, equal: bool) -> None:
    assert can_be_equal(one, other) == can_be_equal(other, one) == equal
