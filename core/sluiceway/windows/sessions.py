"""Assigners of session windows, which end after a gap without records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from sluiceway.config.settings import duration_ms
from sluiceway.errors import ConfigurationError, FunctionContractError
from sluiceway.windows.base import AssignerContext, MergingWindowAssigner, TimeWindow, Trigger, Window
from sluiceway.windows.durations import Duration, positive_milliseconds, shown
from sluiceway.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger

__all__ = ["EventTimeSessionWindows", "ProcessingTimeSessionWindows", "SessionWindowTimeGapExtractor"]


class SessionWindowTimeGapExtractor(ABC):
    """Function that returns for each record the gap after which its session ends."""

    @abstractmethod
    def extract(self, element: Any) -> Duration:
        """Return the gap after ``element``: ms, a timedelta or a text; longer than 0."""


class _Sessions(MergingWindowAssigner):
    """Base of session windows, of either time."""

    def __init__(self, gap: Duration) -> None:
        self.gap_ms: int | None = positive_milliseconds(f"{type(self).__name__}(gap={gap!r})", gap)
        self._gap_of: Callable[[Any], Any] | None = None

    @classmethod
    def with_gap(cls, gap: Duration) -> Self:
        """Return an assigner of sessions that end when there is no record for ``gap``.

        Raises:
            ConfigurationError: no duration, or 0.
        """
        return cls(gap)

    @classmethod
    def with_dynamic_gap(cls, gap_of: Callable[[Any], Duration] | SessionWindowTimeGapExtractor) -> Self:
        """Return an assigner of sessions with a gap ``gap_of(record)`` after each record.

        Raises:
            ConfigurationError: ``gap_of`` is no function.
        """
        extract = gap_of.extract if isinstance(gap_of, SessionWindowTimeGapExtractor) else gap_of
        if not callable(extract) or isinstance(extract, type):
            raise ConfigurationError(
                f"{cls.__name__}.with_dynamic_gap({gap_of!r:.60}): needs a function of a record; for one gap for "
                "all, use with_gap()"
            )
        # A gap that the constructor takes; it is replaced at once.
        sessions = cls(1)
        sessions.gap_ms, sessions._gap_of = None, extract
        return sessions

    def _from(self, start: int, value: Any) -> list[Window]:
        gap = self.gap_ms
        if gap is None:
            assert self._gap_of is not None
            gap = self._gap_of(value)
            if type(gap) is not int or gap <= 0:
                gap = self._checked(gap)
        return [TimeWindow(start, start + gap)]

    def _checked(self, gap: Any) -> int:
        try:
            ms = duration_ms(gap)
        except (TypeError, ValueError):
            ms = 0
        if ms == 0:
            raise FunctionContractError(
                f"{type(self).__name__}.with_dynamic_gap: the function gave {gap!r:.60} for a record; a gap is a "
                "duration (ms, a timedelta or a text such as '10s') longer than 0"
            )
        return ms

    def __repr__(self) -> str:
        gap = "dynamic gap" if self.gap_ms is None else shown(self.gap_ms)
        return f"{type(self).__name__}({gap})"


class EventTimeSessionWindows(_Sessions):
    """Assigner of session windows in event time.

    A record opens a window from its timestamp to the gap after it; windows of a key that overlap or touch
    merge. Made by :meth:`with_gap` or :meth:`with_dynamic_gap`.

    Attributes:
        gap_ms: the gap, or None where it is dynamic.
    """

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the window from ``timestamp`` to the gap after it."""
        return self._from(timestamp, value)

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the watermark passes the end."""
        return EventTimeTrigger()


class ProcessingTimeSessionWindows(_Sessions):
    """Assigner of session windows in processing time.

    Like :class:`EventTimeSessionWindows`, by the machine's clock at the moment when a record arrives at the step.
    """

    event_time: ClassVar[bool] = False

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        """Return the window from the current time to the gap after it."""
        return self._from(context.current_processing_time(), value)

    def default_trigger(self) -> Trigger:
        """Return a trigger that fires when the clock passes the end."""
        return ProcessingTimeTrigger()
