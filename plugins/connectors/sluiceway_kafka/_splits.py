"""Splits: partitions with positions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KafkaSplit", "split_name"]


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """A partition, from a position on.

    Attributes:
        topic: its topic.
        partition: its number.
        position: offset of the next record to read, or -2: the first that is there.
        stop: offset of the first record that is not read any more; None: reading does not end.
    """

    topic: str
    partition: int
    position: int
    stop: int | None = None

    @property
    def split_id(self) -> str:
        """Topic and number."""
        return split_name(self.topic, self.partition)


def split_name(topic: str, partition: int) -> str:
    """Return the id of the split of a partition."""
    return f"{topic}-{partition}"
