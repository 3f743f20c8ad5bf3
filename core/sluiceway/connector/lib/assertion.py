"""Check of the numbers of a :class:`GeneratorSource`: each once, and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluiceway.connector import Sink, SinkWriter, WriterContext
from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.errors import ConfigurationError
from sluiceway.record_errors import record_loop

__all__ = ["SequenceCheckSink", "SequenceChecker", "SequenceReport", "SubtaskSequence"]

_MOST_EXAMPLES: Final = 10


@dataclass(slots=True)
class SubtaskSequence:
    """Numbers that one subtask has received.

    Attributes:
        received: number of records.
        duplicates: numbers that had been received before, by any subtask.
        out_of_order: numbers below one of the same lane that this subtask received before, duplicates not counted.
    """

    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """Result of a :class:`SequenceChecker`.

    Attributes:
        received: number of records.
        lost: numbers that never arrived.
        duplicates: arrivals of a number after its first.
        out_of_order: arrivals after a larger number of the same lane in the same subtask.
        subtasks: result of each subtask.
        examples: a few numbers of each kind: ``{"lost": [3, 4], ...}``.
    """

    received: int
    lost: int
    duplicates: int
    out_of_order: int
    subtasks: dict[int, SubtaskSequence] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no number was lost, arrived twice or out of order."""
        return not (self.lost or self.duplicates or self.out_of_order)

    def __str__(self) -> str:
        parts = [f"{self.received} received"]
        for kind, count in (
            ("lost", self.lost),
            ("duplicates", self.duplicates),
            ("out of order", self.out_of_order),
        ):
            some = self.examples.get(kind.replace(" ", "_"))
            parts.append(f"{count} {kind}" + (f" ({', '.join(map(str, some))}, ...)" if some else ""))
        for subtask, seen in sorted(self.subtasks.items()):
            parts.append(
                f"subtask {subtask}: {seen.received} received, {seen.duplicates} duplicates, "
                f"{seen.out_of_order} out of order"
            )
        return "; ".join(parts)


class SequenceChecker(ProcessLocal):
    """Checker of numbers of a sequence 0, 1, 2, ... as they arrive, in any number of subtasks of this process.

    Takes one byte of memory per number. All calls from one thread.

    Args:
        lanes: order is kept within a lane (numbers that agree modulo ``lanes``): the parallelism of the
            :class:`GeneratorSource` the numbers come from.

    Raises:
        ConfigurationError: ``lanes`` is below 1.
    """

    what = "a SequenceChecker"

    def __init__(self, lanes: int = 1) -> None:
        super().__init__()
        if lanes < 1:
            raise ConfigurationError(f"lanes={lanes} must be at least 1: the parallelism of the source")
        self._lanes = lanes
        self._seen = bytearray()
        self._last: dict[tuple[int, int], int] = {}
        self._subtasks: dict[int, SubtaskSequence] = {}
        self._examples: dict[str, list[int]] = {"lost": [], "duplicates": [], "out_of_order": []}

    @record_loop
    def check(self, numbers: Iterable[int], subtask: int = 0) -> None:
        """Take numbers that arrived at ``subtask``, in this order.

        Raises:
            ValueError: one of them is negative or not an int.
        """
        seen, lanes, last = self._seen, self._lanes, self._last
        mine = self._subtasks.setdefault(subtask, SubtaskSequence())
        for value in numbers:
            if type(value) is not int or value < 0:
                raise ValueError(f"the numbers of a sequence are 0, 1, 2, ...; {value!r:.60} is none of them")
            mine.received += 1
            if value >= len(seen):
                # Doubled, so that growing costs a constant per number.
                seen.extend(bytes(max(value + 1 - len(seen), len(seen), 1024)))
            if seen[value]:
                mine.duplicates += 1
                self._note("duplicates", value)
                continue
            seen[value] = 1
            lane = (subtask, value % lanes)
            if value < last.get(lane, -1):
                mine.out_of_order += 1
                self._note("out_of_order", value)
            else:
                last[lane] = value

    def report(self, count: int | None = None) -> SequenceReport:
        """Return the result so far.

        Args:
            count: expected number of numbers; None: up to the largest that arrived.
        """
        expected = self._seen.rfind(1) + 1 if count is None else count
        lost: list[int] = []
        position = self._seen.find(0, 0, expected)
        while position >= 0 and len(lost) < _MOST_EXAMPLES:
            lost.append(position)
            position = self._seen.find(0, position + 1, expected)
        beyond = range(max(len(self._seen), 0), expected)
        lost += beyond[: _MOST_EXAMPLES - len(lost)]
        subtasks = self._subtasks
        return SequenceReport(
            received=sum(s.received for s in subtasks.values()),
            lost=self._seen.count(0, 0, expected) + len(beyond),
            duplicates=sum(s.duplicates for s in subtasks.values()),
            out_of_order=sum(s.out_of_order for s in subtasks.values()),
            subtasks={i: SubtaskSequence(s.received, s.duplicates, s.out_of_order) for i, s in subtasks.items()},
            examples={**{kind: list(some) for kind, some in self._examples.items()}, "lost": lost},
        )

    def _note(self, kind: str, value: int) -> None:
        examples = self._examples[kind]
        if len(examples) < _MOST_EXAMPLES:
            examples.append(value)


class SequenceCheckSink(Sink[Any]):
    """Sink that passes the number of each record to a :class:`SequenceChecker` of this process.

    Args:
        checker: asked for its report when the job has ended.
        number: returns the number of a record; None: the record is the number.
    """

    def __init__(self, checker: SequenceChecker, number: Callable[[Any], int] | None = None) -> None:
        self._checker = checker
        self._number = number

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make a writer that checks as one subtask."""
        return _CheckWriter(self._checker, self._number, context.subtask)


class _CheckWriter(SinkWriter[Any]):
    def __init__(self, checker: SequenceChecker, number: Callable[[Any], int] | None, subtask: int) -> None:
        self._checker = checker
        self._number = number
        self._subtask = subtask

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._checker.check(values if self._number is None else self._numbers(values, self._number), self._subtask)

    @record_loop
    def _numbers(self, values: Sequence[Any], number: Callable[[Any], int]) -> list[int]:
        numbers = []
        for value in values:
            numbers.append(number(value))
        return numbers
