"""Copies of accumulators that several windows share and that a user's ``merge()`` must not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.isolation import copied

__all__ = ["merge_of_copies"]


def merge_of_copies(merge: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``merge`` with copied arguments, which it may change."""
    return lambda older, newer: merge(copied(older), copied(newer))
