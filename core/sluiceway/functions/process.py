"""Process functions, and the timers that keyed ones set."""

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
    """Which time a timer goes by."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(Hinting, ABC):
    """Time, and timers of the current key. A timer set twice for one point in time fires once.

    Timestamps are ms since the epoch, or aware datetimes.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The runtime's wall clock, ms since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """How far event time has come, in ms."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: Instant) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``timestamp``.

        One that lies behind the watermark fires with the watermark's next step.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: Instant) -> None:
        """Have ``on_timer`` called for the current key when the wall clock reaches ``timestamp``.

        When the input ends, those still waiting fire at once.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: Instant) -> None:
        """Take the current key's timer back; harmless if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: Instant) -> None:
        """Take the current key's timer back; harmless if there is none."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """Any records out for each record in, to the main output and to side outputs."""

    class Context(Hinting, ABC):
        """What is known while one record is processed."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """The record's event time in ms, or None."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The runtime's wall clock, ms since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The task's watermark in ms."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], value: Any) -> None:
            """Emit ``value`` to the side output ``tag`` with the record's timestamp."""

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """The records that ``value`` gives rise to (yield them, or return an iterable), or None."""


class KeyedProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """A process function with state per key."""

    class Context(ProcessFunction.Context, Generic[KEY]):
        """What is known while one record of a keyed stream is processed. ``Context[str]``: its key is a str."""

        @abstractmethod
        def get_current_key(self) -> KEY:
            """The record's key."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the key's timers."""

    class OnTimerContext(Context[KEY]):
        """What is known while a timer fires. ``timestamp()`` is when it was set to fire.

        What a timer of event time gives has its timestamp, what one of processing time gives has none.
        """

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which time the timer went by."""

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """The records that ``value`` gives rise to (yield them, or return an iterable), or None."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer of the current key has fired; what it gives rise to, as for a record.

        Args:
            timestamp: when the timer was set to fire, in ms.
            ctx: the key, its timers, and side outputs.
        """
