"""Counts of a subtask on Spark, which driver and Python workers add up over its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sluiceway.runtime.stepped import SteppedTask

__all__ = ["NOTHING", "ByStep", "Counts", "counts_of", "increase", "sums"]

ByStep = Mapping[str, Mapping[str, float]]
"""Figures by step and name."""


class Counts(NamedTuple):
    """Counts of a subtask since it was brought to its process.

    Attributes:
        records_in: records read or taken.
        records_out: records given on.
        counters: its functions' own counters.
    """

    records_in: int
    records_out: int
    counters: ByStep


NOTHING: Final = Counts(0, 0, {})


def counts_of(chain: SteppedTask) -> Counts:
    """Return the counts of a subtask as of now."""
    return Counts(chain.records_in, chain.records_out, chain.counters())


def increase(now: ByStep, before: ByStep) -> ByStep:
    """Return by how much counters have increased."""
    return {
        step: {name: value - before.get(step, {}).get(name, 0) for name, value in own.items()}
        for step, own in now.items()
    }


def sums(one: ByStep, other: ByStep) -> ByStep:
    """Return the sums of counters."""
    return {
        step: {
            name: one.get(step, {}).get(name, 0) + other.get(step, {}).get(name, 0)
            for name in {**one.get(step, {}), **other.get(step, {})}
        }
        for step in {**one, **other}
    }
