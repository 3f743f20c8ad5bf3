"""Placement of subtasks in Spark's partitions of state.

Spark puts a group into the partition that a hash of its key says. The key of a group is therefore a number with
that hash, made of the number of the subtask: for the same plan and partitions always the same one.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from sluiceway.runtime.stepped import SteppedPlan

__all__ = ["MOST_TARGETS", "keys_of", "partition_of", "place_of", "target_of"]

MOST_TARGETS: Final = 1 << 16
"""Subtasks whose numbers are in the lower half of their keys."""

_WORD: Final = 0xFFFFFFFF
_SEED: Final = 42


def place_of(plan: SteppedPlan, target: int, partitions: int) -> int:
    """Return the partition of a subtask: the subtasks of a vertex are dealt in runs, as even as possible.

    So are the producers of a consumer along an edge without an exchange: both are in one partition if there are as
    many consumers as partitions.
    """
    vertex, subtask = plan.who(target)
    return subtask * partitions // plan.graph.vertex(vertex).parallelism


def keys_of(plan: SteppedPlan, partitions: int) -> list[int]:
    """Return the key of each subtask's group, in the order of their numbers."""
    return [_key(target, place_of(plan, target, partitions), partitions) for target in range(plan.targets)]


def target_of(key: int) -> int:
    """Return the number of the subtask of a group."""
    return key % MOST_TARGETS


def _key(target: int, partition: int, partitions: int) -> int:
    candidates = (target + turn * MOST_TARGETS for turn in count())
    return next(key for key in candidates if partition_of(key, partitions) == partition)


def partition_of(key: int, partitions: int) -> int:
    """Return the partition into which Spark puts an ``int`` key: its Murmur3 hash, modulo."""
    # Murmur3 (x86, 32 bits) of one word with Spark's seed. Python's modulo is never negative, as Spark's pmod.
    word = key * 0xCC9E2D51 & _WORD
    word = (word << 15 | word >> 17) & _WORD
    found = _SEED ^ (word * 0x1B873593 & _WORD)
    found = (found << 13 | found >> 19) & _WORD
    found = ((found * 5 + 0xE6546B64) & _WORD) ^ 4
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    found ^= found >> 16
    return (found - (1 << 32) if found >> 31 else found) % partitions
