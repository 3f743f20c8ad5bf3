"""Numbers of tries: few in `make test`, many under the profile `explore`, which `make test-all` takes.

And few cases of many in `make test`, the others marked `slow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["FEW", "MANY", "diagonal", "examples", "explores", "first", "fresh_seeds", "tries"]

FEW, MANY = 10, 1000
"""Examples of a test that names no number, in the profiles `repeatable` and `explore`."""


def explores() -> bool:
    """Return whether the profile `explore` is in force."""
    return settings.default.max_examples >= MANY  # type: ignore[union-attr]


def tries(few: int, many: int) -> int:
    """Return the number of tries of the profile in force."""
    return many if explores() else few


def fresh_seeds(count: int) -> list[int]:
    """Choose seeds by chance: each run tries others, and what fails says its own."""
    return SystemRandom().sample(range(1 << 32), count)


def examples(few: int, many: int) -> settings:
    """Make the settings of a property that is tried on so many examples."""
    return settings(max_examples=tries(few, many), deadline=None)


def first(few: int, cases: Iterable[Any]) -> list[Any]:
    """Make parameters of cases that differ by chance alone, like seeds. All but the first few are `slow`."""
    return [case if number < few else _slow(case) for number, case in enumerate(cases)]


def diagonal(*axes: Sequence[Any]) -> list[Any]:
    """Make parameters of all combinations. Each value is in one that is no `slow` one, at least."""
    longest = max(map(len, axes))
    kept = {tuple(number % len(axis) for axis in axes) for number in range(longest)}
    return [
        case if index in kept else _slow(case)
        for index, case in zip(product(*map(range, map(len, axes))), product(*axes), strict=True)
    ]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
