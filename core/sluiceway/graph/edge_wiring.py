"""Connections between the subtasks of a producer and those of a consumer."""

from __future__ import annotations

from sluiceway.partitioner import Distribution

__all__ = ["consumers_of_subtask", "producers_of_subtask"]


def _share(index: int, mine: int, others: int) -> range:
    """Return the contiguous part of ``others`` that subtask ``index`` of ``mine`` is connected to."""
    if mine >= others:
        first = index * others // mine
        return range(first, first + 1)
    # The inverse of the above: all x with x * mine // others == index.
    return range(-(-index * others // mine), -(-(index + 1) * others // mine))


def producers_of_subtask(distribution: Distribution, producers: int, consumers: int, consumer: int) -> range:
    """Return the producing subtasks that feed subtask ``consumer``, by their index."""
    if distribution is Distribution.ALL_TO_ALL:
        return range(producers)
    return _share(consumer, consumers, producers)


def consumers_of_subtask(distribution: Distribution, producers: int, consumers: int, producer: int) -> range:
    """Return the consuming subtasks that subtask ``producer`` feeds, by their index."""
    if distribution is Distribution.ALL_TO_ALL:
        return range(consumers)
    return _share(producer, producers, consumers)
