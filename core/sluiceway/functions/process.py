"""Process functions, and the timers of keyed ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic

from sluiceway.functions.base import Function, OutputTag
from sluiceway.util.instants import Instant
from sluiceway.util.name_hints import Hinting

__all__ = ["KeyedProcessFunction", "ProcessFunction", "TimeDomain", "TimerService"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    KEY = TypeVar("KEY", default=Any)
else:
    from typing import TypeVar

    KEY = TypeVar("KEY")

K = TypeVar("K")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class TimeDomain(Enum):
    """Time domain of a timer."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(Hinting, ABC):
    """Time, and timers of the current key. A timer set twice for one point in time fires once.

    Timestamps are ms since the epoch, or aware datetimes.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the current time, ms since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in ms."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: Instant) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``timestamp``.

        A timer behind the watermark fires when the watermark next rises.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: Instant) -> None:
        """Have ``on_timer`` called for the current key when the clock reaches ``timestamp``.

        At the end of the input, the remaining timers fire at once.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: Instant) -> None:
        """Take the current key's timer back; harmless if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: Instant) -> None:
        """Take the current key's timer back; harmless if there is none."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """Function that returns any number of records for each record, for the main output and side outputs."""

    class Context(Hinting, ABC):
        """Context of a record."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in ms, or None."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the current time, ms since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the task's watermark in ms."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], value: Any) -> None:
            """Emit ``value`` to the side output ``tag`` with the record's timestamp."""

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for ``value``, or return an iterable of them, or None."""


class KeyedProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """Process function with state per key."""

    class Context(ProcessFunction.Context, Generic[KEY]):
        """Context of a record of a keyed stream. ``Context[str]``: its key is a str."""

        @abstractmethod
        def get_current_key(self) -> KEY:
            """Return the record's key."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the timer service of the key."""

    class OnTimerContext(Context[KEY]):
        """Context of a timer. ``timestamp()`` is the time for which it was set.

        The results of an event-time timer have its timestamp, those of a processing-time timer have none.
        """

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the time domain of the timer."""

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """Yield the results for ``value``, or return an iterable of them, or None."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """Yield or return the results for a timer of the current key.

        Args:
            timestamp: the time for which the timer was set, in ms.
            ctx: the key, its timers, and side outputs.
        """
