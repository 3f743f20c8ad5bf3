"""From a key to a key group to a subtask: the same in every process, on every engine, in every run."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

__all__ = ["KeyGroupRange", "key_group", "stable_hash", "subtask_for_key_group"]


class KeyGroupRange(NamedTuple):
    """Key groups ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    @classmethod
    def of_subtask(cls, subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        """The contiguous range that a subtask owns."""
        start = -(-subtask * max_parallelism // parallelism)
        end = -(-(subtask + 1) * max_parallelism // parallelism)
        return cls(start, end)


def subtask_for_key_group(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group."""
    return group * parallelism // max_parallelism


def stable_hash(key: Hashable) -> int:
    """A 32-bit hash of ``key`` that is the same everywhere."""
    raise NotImplementedError


def key_group(key: Hashable, max_parallelism: int) -> int:
    """The key group of ``key``."""
    return stable_hash(key) % max_parallelism
