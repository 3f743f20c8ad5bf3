"""Contract of partitioners: the consumer of each record of an edge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

from sluiceway.elements import Batch

__all__ = ["Distribution", "Partitioner"]


class Distribution(Enum):
    """Connection pattern between producers and consumers."""

    POINTWISE = "pointwise"
    ALL_TO_ALL = "all-to-all"


class Partitioner(ABC):
    """Contract of partitioners, which split batches among the consumers of a producing subtask.

    An instance belongs to one producing subtask. Order among the records for one consumer is kept.
    """

    name: str = ""
    distribution: Distribution = Distribution.ALL_TO_ALL

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Prepare the instance; called once, before the first batch.

        Args:
            subtask: index of the producing subtask.
            consumers: how many channels this producer has on the edge.
            seed: for partitioners that draw lots; given by the runtime, so that a run can be repeated.
        """
        self.subtask = subtask
        self.consumers = consumers
        self.seed = seed

    @abstractmethod
    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Return pairs of channel index and non-empty batch, at most one per channel."""
