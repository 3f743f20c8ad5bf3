"""Source of numbers, or of records made of them, with an optional rate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import floor
from operator import length_hint
from typing import Any, Final, TypeVar

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    Source,
    Wait,
)
from sluiceway.connector.lib.static_enumerator import StaticSplitEnumerator
from sluiceway.connector.lib.timestamps import stamped
from sluiceway.errors import ConfigurationError, FunctionContractError
from sluiceway.isolation import all_unchangeable, extend_isolated, isolated_list, share_changeable
from sluiceway.persisted import persisted
from sluiceway.util.instants import Instant
from sluiceway.util.overriding import override

__all__ = ["GeneratorSource"]

T = TypeVar("T")

# At high rates, what falls due within this time comes together.
_SHORTEST_WAIT_S: Final = 0.001
# Whoever was held up catches up at most this much.
_MOST_CATCH_UP_S: Final = 1.0
# A due time computed in floats may lie this share of a record in the future.
_ROUNDING: Final = 1e-6


@persisted("GeneratorSplit")
@dataclass(frozen=True)
class _Lane:
    """The numbers ``index``, ``index + lanes``, ``index + 2 * lanes``, ...; ``next`` is the next one.

    ``due_ms`` is when that is due, in ms since the epoch, if it has a rate and has been read from: another reader
    goes on with the same schedule, as the next micro-batch has one in another process.
    """

    index: int
    lanes: int
    next: int
    stop: int | None
    due_ms: float | None = None

    def __setstate__(self, state: dict[str, Any] | list[Any]) -> None:
        # What earlier versions stored is a list of the first four.
        named = (
            state if isinstance(state, dict) else dict(zip(("index", "lanes", "next", "stop"), state, strict=True))
        )
        self.__dict__.update(named)

    @property
    def split_id(self) -> str:
        return f"lane-{self.index}-of-{self.lanes}"

    def numbers(self, limit: int, stop: int | None = None) -> range:
        """Return the next numbers, at most ``limit``, all below ``stop`` and the lane's own end."""
        ends = [end for end in (self.next + limit * self.lanes, self.stop, stop) if end is not None]
        return range(self.next, min(ends), self.lanes)


class GeneratorSource(Source[T]):
    """Records made from the numbers 0, 1, 2, ...: for tests, benchmarks and first steps.

    Each number comes exactly once. With n readers, reader i has the numbers i, i + n, i + 2n, ..., in order.
    Positions can be snapshotted and restored; the function must then give the same record for the same number.

    Args:
        function: makes the record of a number; None: the number is the record.
        count: how many numbers; None: without end. A run that goes on from a checkpoint ends at
            the smaller of this and the count of the run that took it.
        rate: records per second, of all readers together; None: as fast as they are taken. A source that was
            held up catches up for at most one second.
        timestamp: gives the event time of a record in ms since the epoch, or as an aware datetime; None:
                records have none.
        output_type: type of the records, if it is to be checked along the graph.

    Raises:
        ConfigurationError: ``count`` is negative or ``rate`` is not above 0.
    """

    def __init__(
        self,
        function: Callable[[int], T] | None = None,
        count: int | None = None,
        *,
        rate: float | None = None,
        timestamp: Callable[[T], Instant] | None = None,
        output_type: Any = None,
    ) -> None:
        if function is not None and not callable(function):
            raise ConfigurationError(
                f"function= must be callable with a number, not {function!r:.60}; for plain numbers, "
                "GeneratorSource(count=...)"
            )
        if count is not None and (not isinstance(count, int) or count < 0):
            raise ConfigurationError(f"count={count!r} must be a whole number from 0 on, or None for no end")
        if rate is not None and not rate > 0:
            raise ConfigurationError(f"rate={rate!r} must be above 0 records per second, or None for no limit")
        self._function = function
        self._count = count
        self._rate = rate
        self._timestamp = timestamp
        self._type = int if function is None and output_type is None else output_type

    def __repr__(self) -> str:
        return f"GeneratorSource(count={self._count}, rate={self._rate})"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded if there is a count."""
        return Boundedness.UNBOUNDED if self._count is None else Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Type as given; int where the numbers are the records."""
        return self._type

    @property
    def gives_timestamps(self) -> bool:
        """True if a function for them was given."""
        return self._timestamp is not None

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Deal the numbers out to as many lanes as there are readers."""
        if restored is None:
            lanes = context.parallelism
            restored = [
                _Lane(i, lanes, i, self._count) for i in range(lanes) if self._count is None or i < self._count
            ]
        return StaticSplitEnumerator(context, restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[T]:
        return _GeneratorReader(context, self._function, self._count, self._rate, self._timestamp)


class _Pace:
    """Schedule of the numbers of one lane.

    Args:
        lane: the lane.
        rate: of all lanes together.
        now: monotonic seconds.
        now_ms: the same moment in ms since the epoch.
    """

    def __init__(self, lane: _Lane, rate: float, now: float, now_ms: int) -> None:
        self._rate = rate
        if lane.due_ms is None:
            # All lanes of a source that starts afresh count from number 0: together they keep the order.
            self._first = lane.next - lane.index
            self._start = now
        else:
            self._first = lane.next
            # Where the clock was set back, nobody waits for longer than the rate says.
            self._start = now + min((lane.due_ms - now_ms) / 1000, lane.lanes / rate)

    def stop(self, now: float) -> int:
        """Return the number below which all are due now."""
        # floor(), as the start of a restored lane is in the future: int() would round up there.
        return self._first + floor((now - self._start) * self._rate + _ROUNDING) + 1

    def due(self, number: int) -> float:
        """Return when ``number`` is due."""
        return self._start + (number - self._first) / self._rate

    def forgive(self, number: int, now: float) -> None:
        """Limit how long ago ``number`` was due."""
        late = now - self.due(number) - _MOST_CATCH_UP_S
        if late > 0:
            self._start += late


class _GeneratorReader(Reader[T]):
    def __init__(
        self,
        context: ReaderContext,
        function: Callable[[int], T] | None,
        count: int | None,
        rate: float | None,
        timestamp: Callable[[T], Instant] | None,
    ) -> None:
        self._context = context
        self._function = function
        self._count = count
        self._rate = rate
        self._timestamp = timestamp
        self._lanes: list[_Lane] = []  # the one whose turn it is comes first
        self._finished: list[str] = []
        self._paused: frozenset[str] = frozenset()
        self._paces: dict[str, _Pace] = {}
        self._no_more = False
        # Until a batch shows that the function's records cannot be changed; for good after one that shares them.
        self._isolates = True
        self._shares = False

    def start(self) -> None:
        self._context.request_split()

    def add_splits(self, splits: Sequence[_Lane]) -> None:
        for lane in splits:
            # Of a run with another count, or with none.
            if self._count is not None and (lane.stop is None or lane.stop > self._count):
                lane = replace(lane, stop=self._count)
            if lane.stop is None or lane.next < lane.stop:
                self._lanes.append(lane)
            else:
                self._finished.append(lane.split_id)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> Poll[T]:
        lanes = self._lanes
        if self._paused:
            lanes = [lane for lane in lanes if lane.split_id not in self._paused]
        if not lanes:
            return END_OF_INPUT if self._no_more and not self._lanes else Wait()
        if self._rate is None:
            lane = lanes[0]
            numbers = lane.numbers(limit)
        else:
            now = self._context.clock.monotonic()
            dues = [self._pace(lane, now).due(lane.next) for lane in lanes]
            turn = dues.index(min(dues))
            lane = lanes[turn]
            pace = self._pace(lane, now)
            pace.forgive(lane.next, now)
            numbers = lane.numbers(limit, pace.stop(now))
            if not numbers:
                return Wait(until=max(dues[turn], now + _SHORTEST_WAIT_S))
        result = stamped(self._records(numbers), self._timestamp)
        self.current_split_id = lane.split_id
        self._lanes.remove(lane)
        lane = replace(lane, next=numbers[-1] + lane.lanes)
        if lane.stop is None or lane.next < lane.stop:
            self._lanes.append(lane)
        else:
            self._finished.append(self.current_split_id)
        return result

    def finished_splits(self) -> Sequence[str]:
        finished, self._finished = self._finished, []
        return finished

    def pause_splits(self, split_ids: Collection[str]) -> bool:
        self._paused = frozenset(split_ids)
        return True

    def snapshot(self) -> list[_Lane]:
        if not self._paces:
            return list(self._lanes)
        clock = self._context.clock
        # Monotonic readings mean nothing in another process.
        ahead_ms = clock.now_ms() - clock.monotonic() * 1000
        return [
            lane if pace is None else replace(lane, due_ms=pace.due(lane.next) * 1000 + ahead_ms)
            for lane in self._lanes
            for pace in [self._paces.get(lane.split_id)]
        ]

    def close(self) -> None:
        pass

    def _pace(self, lane: _Lane, now: float) -> _Pace:
        pace = self._paces.get(lane.split_id)
        if pace is None:
            assert self._rate is not None
            now_ms = self._context.clock.now_ms()
            pace = self._paces[lane.split_id] = _Pace(lane, self._rate, now, now_ms)
        return pace

    def _records(self, numbers: range) -> list[Any]:
        if self._function is None:
            return list(numbers)
        # An iterator of its own says how far map() has come when the function raises.
        left = iter(numbers)
        made = map(self._function, left)
        records: list[Any] = []
        try:
            if self._isolates:
                # One by one: the function may keep what it has returned, and change it for the next number.
                extend_isolated(records, made)
            else:
                records += made
        except Exception as error:
            error.add_note(f"record: number {_last_taken(numbers, left)} of GeneratorSource")
            raise
        if len(records) < len(numbers):
            raise FunctionContractError(
                f"GeneratorSource: the function raised StopIteration for number {_last_taken(numbers, left)}. "
                "It must return a record for every number; count= says how many there are"
            )
        if all_unchangeable(records):
            self._isolates = self._shares
        elif not self._isolates:
            self._isolates = True
            if share_changeable(records):
                # Each has become what the last one is. The function gives the same for the same number.
                self._shares = True
                return self._records(numbers)
            records = isolated_list(records)
        return records


def _last_taken(numbers: range, left: Any) -> int:
    return numbers[len(numbers) - length_hint(left) - 1]
