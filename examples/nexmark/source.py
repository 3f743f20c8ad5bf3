"""The events as a source: any number of readers share them, and each can go on from where it was."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Source,
    Wait,
)
from sluiceway.elements import Batch

from .generator import NexmarkConfig, NexmarkGenerator
from .model import Event

__all__ = ["NexmarkSource"]

_EPOCHS_A_PIECE = 20


@dataclass(frozen=True)
class Lane:
    """A split: pieces ``index``, ``index + lanes``, ``index + 2 * lanes``, ... of the events.

    Attributes:
        index: which lane.
        lanes: how many there are.
        piece: the one that is read.
        done: so many of its events have been read.
    """

    index: int
    lanes: int
    piece: int
    done: int = 0

    @property
    def split_id(self) -> str:
        return f"lane-{self.index}-of-{self.lanes}"


class NexmarkSource(Source[Event]):
    """The events of Nexmark with their times: the same ones, whatever the parallelism.

    Args:
        count: how many; None: without end.
        config: what they are like.
    """

    def __init__(self, count: int | None = None, config: NexmarkConfig | None = None) -> None:
        if count is not None and count < 0:
            raise ValueError(f"count={count} must be 0 or more, or None for events without end")
        self.count = count
        self.config = config or NexmarkConfig()

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED if self.count is None else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Sequence[Lane] | None = None) -> Enumerator:
        """Make as many lanes as there are readers."""
        lanes = context.parallelism
        return SimpleEnumerator(
            context, [Lane(i, lanes, i) for i in range(lanes)] if restored is None else restored
        )

    def create_reader(self, context: ReaderContext) -> Reader[Event]:
        return NexmarkReader(context, self.count, self.config)


class NexmarkReader(Reader[Event]):
    """Reads lanes, always the one that is furthest behind: so times do not jump back and forth."""

    def __init__(self, context: ReaderContext, count: int | None, config: NexmarkConfig) -> None:
        self.context = context
        self.count = count
        self.generator = NexmarkGenerator(config)
        self.groups = max(1, _EPOCHS_A_PIECE // config.group_epochs)  # in a piece
        self.size = self.groups * config.group_epochs * config.epoch_size
        self.lanes: dict[str, Lane] = {}
        self.pieces: dict[str, list[Event]] = {}  # those that have been begun
        self.no_more = False

    def start(self) -> None:
        self.context.request_split()

    def add_splits(self, splits: Sequence[Lane]) -> None:
        self.lanes.update((lane.split_id, lane) for lane in splits)
        self.context.request_split()

    def no_more_splits(self) -> None:
        self.no_more = True

    def poll(self, limit: int) -> Poll[Event]:
        while self.lanes:
            lane = min(self.lanes.values(), key=lambda lane: lane.piece)
            piece = self.pieces.get(lane.split_id)
            if piece is None:
                piece = self.pieces[lane.split_id] = self.make(lane.piece)
            if not piece:  # the events end before this one
                del self.lanes[lane.split_id], self.pieces[lane.split_id]
                continue
            events = piece[lane.done : lane.done + limit]
            done = lane.done + len(events)
            if done < len(piece):
                self.lanes[lane.split_id] = replace(lane, done=done)
            else:
                self.lanes[lane.split_id] = replace(lane, piece=lane.piece + lane.lanes, done=0)
                del self.pieces[lane.split_id]
            return Batch(events, [event.date_time for event in events])
        return END_OF_INPUT if self.no_more else Wait()

    def make(self, number: int) -> list[Event]:
        left = self.size if self.count is None else min(self.size, self.count - number * self.size)
        if left <= 0:
            return []
        groups = range(number * self.groups, (number + 1) * self.groups)
        return [event for group in groups for event in self.generator.group(group)][:left]

    def snapshot(self) -> list[Lane]:
        return list(self.lanes.values())

    def close(self) -> None:
        """Nothing was opened."""
