"""Numbers of tries: few in `make test`, many under the profile `explore`, which `make test-all` takes."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["FEW", "MANY", "examples", "tries"]

FEW, MANY = 40, 1000
"""Examples of a test that names no number, in the profiles `repeatable` and `explore`."""


def tries(few: int, many: int) -> int:
    """Return the number of tries of the profile in force."""
    return many if settings.default.max_examples >= MANY else few  # type: ignore[union-attr]


def examples(few: int, many: int) -> settings:
    """Make the settings of a property that is tried on so many examples."""
    return settings(max_examples=tries(few, many), deadline=None)
