"""Commits of a reader's offsets to the consumer group, once the checkpoint that holds them is complete.

Restores never read them: positions come from the checkpoint. They are for tools that show the lag of the group,
and for sources that start from them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sluiceway.metrics import MetricGroup
from sluiceway_kafka._connection import describe_error
from sluiceway_kafka._offset_bounds import Partition

__all__ = ["OffsetCommits"]

_log: Final = logging.getLogger("sluiceway_kafka")


class OffsetCommits:
    """Offsets that wait for their commit, and the outcome of earlier commits.

    :meth:`add` is for the task's thread, the other methods for whichever thread is inside the client.

    Args:
        group: id of the consumer group.
        metrics: group of the reader, to which ``commitsSucceeded`` and ``commitsFailed`` are added.
        committed: called with a partition and its offset that the broker has committed.
    """

    def __init__(self, group: str, metrics: MetricGroup, committed: Callable[[Partition, int], None]) -> None:
        self._group = group
        self._committed = committed
        # Shared by the two threads without a lock: append() and pop() are atomic, and of two entries the later
        # wins, as of several checkpoints only the last one counts.
        self._waiting: deque[list[TopicPartition]] = deque(maxlen=1)
        self._succeeded = metrics.counter("commitsSucceeded")
        self._failed = metrics.counter("commitsFailed")

    @property
    def pending(self) -> bool:
        """True if offsets wait for :meth:`send`."""
        return bool(self._waiting)

    def add(self, offsets: list[TopicPartition]) -> None:
        """Have offsets committed by the next :meth:`send`, instead of earlier ones that still wait."""
        self._waiting.append(offsets)

    def send(self, consumer: Consumer) -> None:
        """Begin the commit of the offsets that wait, if any; the broker's answer arrives at :meth:`on_commit`."""
        try:
            offsets = self._waiting.pop()
        except IndexError:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.on_commit(error.args[0], offsets)

    def on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Count a commit that has ended; log it if it failed."""
        failed = error or next((each.error for each in offsets if each.error is not None), None)
        if failed is None:
            self._succeeded.inc()
            for each in offsets:
                self._committed((each.topic, each.partition), each.offset)
            return
        self._failed.inc()
        hint = ""
        if failed.code() == KafkaError.UNKNOWN_MEMBER_ID:
            # The source subscribes to nothing, and so is no member of its group.
            hint = "; other consumers subscribe with this group: give the source a group_id that nothing else uses"
        _log.warning(
            "offsets of a checkpoint were not committed to group %r: %s%s. Reading resumes from checkpoints all "
            "the same",
            self._group,
            describe_error(failed),
            hint,
        )
