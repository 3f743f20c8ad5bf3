"""Finds partitions, where to begin in them, and which reader has them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from sluiceway.connector import EnumeratorContext
from sluiceway.connector.discovery import DiscoveringEnumerator
from sluiceway_kafka._connection import PositionLostError
from sluiceway_kafka._offset_bounds import Partition
from sluiceway_kafka._splits import KafkaSplit

__all__ = ["CONFIRM_S", "Discovered", "Found", "KafkaEnumerator", "Look"]

_log: Final = logging.getLogger("sluiceway_kafka")

CONFIRM_S: Final = 3.0
"""Time for which a known partition has to be missing before it counts as gone."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """State of the enumerator in checkpoints.

    Attributes:
        pending: splits that no reader has.
        known: partitions that were found, with their readers' splits and those read to their end.
        topics: ids of the topics that were found, by name.
    """

    pending: list[KafkaSplit] = field(default_factory=list)
    known: frozenset[Partition] = frozenset()
    topics: Mapping[str, str] = field(default_factory=dict)


class Found(NamedTuple):
    """Result of a look.

    Attributes:
        there: all partitions that are there.
        splits: splits for those that are new and not empty.
        topics: ids of topics that brokers have given them, by name. A topic that is made anew has another one.
    """

    there: frozenset[Partition]
    splits: list[KafkaSplit]
    topics: Mapping[str, str]


Look = Callable[[frozenset[Partition], bool], Found]
"""Finds partitions, given those that are known and whether this is the first time. Blocks."""


class KafkaEnumerator(DiscoveringEnumerator[Found]):
    """Enumerator that assigns each partition to one reader.

    Its methods are called in its own thread, except for looks for new partitions.

    A later look that cannot reach the cluster is logged, and the next one tries again. A partition that was known
    and is missing in two looks, some seconds apart, fails the job: brokers that are starting may not know it yet.
    So does a topic that was made anew, where offsets of the earlier one stand for other records.

    Args:
        context: given by the runtime.
        look: finds partitions; called in any thread, by one at a time.
        close_look: frees what it uses.
        interval_ms: from the end of a look to the next one; None: the first one is the only one.
        discovers: True if new partitions are read; else later looks only notice that known ones are gone.
        restored: what an earlier enumerator kept, or None.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        look: Look,
        close_look: Callable[[], None],
        interval_ms: int | None,
        restored: Discovered | None,
        *,
        discovers: bool = True,
    ) -> None:
        super().__init__(
            context,
            interval_ms,
            create_thread=partial(ThreadPoolExecutor, 1, "sluiceway-kafka-partitions"),
            log=_log,
            sought="partitions",
        )
        self._look = look
        self._close_look = close_look
        self._discovers = discovers and interval_ms is not None
        self._is_new = restored is None
        self._known = frozenset[Partition]() if restored is None else restored.known
        # A checkpoint of an earlier version has no ids.
        self._topics: dict[str, str] = dict(getattr(restored, "topics", None) or {})
        self._pending = [] if restored is None else list(restored.pending)
        self._returned: dict[int, list[KafkaSplit]] = {}
        self._readers: set[int] = set()
        self._missing_since: float | None = None

    def add_reader(self, reader: int) -> None:
        """Give a reader its splits."""
        self._readers.add(reader)
        if returned := self._returned.pop(reader, None):
            self._context.assign(reader, returned)
        self._hand_out()
        if not self._discovers:
            self._context.no_more_splits(reader)

    def handle_split_request(self, reader: int) -> None:
        """Readers get splits without asking."""

    def add_splits_back(self, splits: Sequence[KafkaSplit], reader: int) -> None:
        """Keep the splits for the next attempt of the reader."""
        self._readers.discard(reader)
        # Not by partition: after a change of the parallelism readers have others than those, and the reader that
        # would have a partition now may have ended.
        self._returned.setdefault(reader, []).extend(splits)

    def snapshot(self) -> Discovered:
        """Return the splits that no reader has, and the partitions that are known."""
        returned = [split for splits in self._returned.values() for split in splits]
        return Discovered([*returned, *self._pending], self._known, dict(self._topics))

    def close(self) -> None:
        """Wait for a look that is under way, end its thread and close the connection."""
        super().close()
        self._close_look()

    def _search(self) -> Found:
        return self._look(self._known, self._is_new)

    def _take(self, found: Found) -> None:
        there, splits, topics = found
        for topic, identity in topics.items():
            if self._topics.setdefault(topic, identity) != identity:
                raise PositionLostError(
                    f"topic {topic!r} was deleted and created again, or is that of another cluster: offsets in "
                    "checkpoints are those of the earlier topic, and records would be skipped or read twice. To "
                    "read the new one, start without the checkpoint, or give the source another uid"
                )
        gone = sorted(self._known - there)
        now = self._context.clock.monotonic()
        if not gone:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
            _log.warning(
                "partition %d of topic %r is not there; looking again before the job fails", *gone[0][::-1]
            )
        elif now - self._missing_since >= CONFIRM_S:
            topic, partition = gone[0]
            raise PositionLostError(
                f"partition {partition} of topic {topic!r} is not there any more"
                + (f", nor are {len(gone) - 1} others" if len(gone) > 1 else "")
                + ": the topic was deleted, or created again with fewer partitions. What is in checkpoints about "
                "it cannot be read any more: give the source another uid to start without a checkpoint"
            )
        if self._is_new or self._discovers:
            self._known |= there
            self._pending += splits
        self._is_new = False

    def _schedule(self) -> None:
        super()._schedule()
        # A partition that is missing is looked for again soon, not after a whole interval.
        if (
            self._missing_since is not None
            and self._interval_ms is not None
            and self._interval_ms > CONFIRM_S * 1000
        ):
            self._next_search = self._context.clock.monotonic() + CONFIRM_S
            self._context.wake(CONFIRM_S)

    def _hand_out(self) -> None:
        count = self._context.parallelism
        kept: list[KafkaSplit] = []
        given: dict[int, list[KafkaSplit]] = {}
        for split in self._pending:
            reader = _owner(split, count)
            if reader in self._readers:
                given.setdefault(reader, []).append(split)
            else:
                kept.append(split)
        self._pending = kept
        for reader, splits in given.items():
            self._context.assign(reader, splits)


def _owner(split: KafkaSplit, readers: int) -> int:
    """Return the reader of a partition. Those of a topic go to readers in turn, from one that its name decides."""
    # Not hash(), which differs between processes.
    start = sum(split.topic.encode()) * 31
    return (start + split.partition) % readers
