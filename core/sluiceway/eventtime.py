"""Event time: timestamps, watermark generators and watermark strategies."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sluiceway.config.settings import duration_ms
from sluiceway.elements import MIN_WATERMARK
from sluiceway.errors import ConfigurationError
from sluiceway.persisted import persisted
from sluiceway.util.instants import Instant
from sluiceway.util.overriding import override

__all__ = [
    "BoundedOutOfOrderness",
    "ColumnTimestamps",
    "NoWatermarks",
    "TimestampAssigner",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "takes_record_timestamp",
]

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class WatermarkOutput(ABC):
    """Output of a watermark generator. To be called from the task's thread only."""

    @abstractmethod
    def emit_watermark(self, timestamp: Instant) -> None:
        """Emit a watermark. One that is not higher than the last is ignored.

        Args:
            timestamp: time at or before which no record is expected any more: ms since the epoch, or an aware
                datetime.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Mark the stream as idle: it does not hold back the event time of those that it meets."""

    @abstractmethod
    def mark_active(self) -> None:
        """Mark the stream as active again."""


class WatermarkGenerator(ABC, Generic[T]):
    """Generator of the watermarks of one split, or of one subtask, from its records.

    A strategy makes one object per split or subtask, which is called in the task's thread. A watermark that
    :meth:`on_event` emits keeps its place behind the record; those of :meth:`on_periodic_emit` come
    between batches.
    """

    @abstractmethod
    def on_event(self, value: T, timestamp: int, output: WatermarkOutput) -> None:
        """Handle a record.

        Args:
            value: the record.
            timestamp: its event time, in ms since the epoch.
            output: takes a watermark, if the record gives reason for one.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark if it has changed; called at the watermark interval, or more often."""

    def on_batch(self, values: Sequence[T], timestamps: Sequence[int], output: WatermarkOutput) -> None:
        """Handle several records. To be overridden where that costs less than one call for each.

        Of a class that overrides it, :meth:`on_event` is not called, and a watermark is emitted behind the whole
        batch.

        Args:
            values: the records, at least one.
            timestamps: their event times, in ms since the epoch.
            output: takes the watermark.
        """
        for value, timestamp in zip(values, timestamps, strict=True):
            self.on_event(value, timestamp, output)


@persisted("BoundedOutOfOrderness")
class BoundedOutOfOrderness(WatermarkGenerator[Any]):
    """Generator of the highest timestamp so far, less the bound, less 1 ms.

    Args:
        bound_ms: ms by which a record may be behind the highest timestamp.
    """

    def __init__(self, bound_ms: int) -> None:
        self._bound = bound_ms
        self._highest = MIN_WATERMARK + bound_ms + 1

    @override
    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput) -> None:
        if timestamp > self._highest:
            self._highest = timestamp

    @override
    def on_batch(self, values: Sequence[Any], timestamps: Sequence[int], output: WatermarkOutput) -> None:
        highest = max(timestamps)
        if highest > self._highest:
            self._highest = highest

    @override
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self._highest - self._bound - 1)


@persisted("NoWatermarks")
class NoWatermarks(WatermarkGenerator[Any]):
    """Generator of no watermarks: event time does not advance until the input ends."""

    @override
    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput) -> None:
        pass

    @override
    def on_batch(self, values: Sequence[Any], timestamps: Sequence[int], output: WatermarkOutput) -> None:
        pass

    @override
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class TimestampAssigner(ABC, Generic[T_contra]):
    """Assigner of event time to records. A plain function of the record serves as well."""

    @abstractmethod
    def extract_timestamp(self, value: T_contra, record_timestamp: int) -> Instant:
        """Return the event time of a record.

        Args:
            value: the record.
            record_timestamp: the one that it has so far, in ms; MIN_WATERMARK if it has none.

        Returns:
            ms since the epoch, or an aware datetime (as ``pandas.Timestamp`` is one).
        """


class ColumnTimestamps(TimestampAssigner[Any]):
    """Assigner that takes the event time of a row from a column.

    Args:
        name: the column: timestamps, or int64 milliseconds since the epoch.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def extract_timestamp(self, value: Any, record_timestamp: int) -> Instant:
        """Return the value of the column in one row."""
        time: Instant = value[self.name]
        return time

    def of_columns(self, data: Any, step: str) -> Sequence[int]:
        """Return the event times (ms) of the rows of a ``pyarrow.RecordBatch``.

        Raises:
            FunctionContractError: a row has none.
        """
        from sluiceway.columns.times import event_times  # where pyarrow is installed

        return event_times(data.column(self.name), self.name, step)

    def missing_in(self, data: Any) -> Any:
        """Return for each row of a ``pyarrow.RecordBatch`` whether it has no event time, as a numpy array."""
        from sluiceway.columns.times import without_time  # where pyarrow is installed

        return without_time(data.column(self.name))

    def __repr__(self) -> str:
        return f"column {self.name!r}"


def takes_record_timestamp(assigner: object) -> bool:
    """Return whether a plain callable takes Flink's arguments of an assigner: (record, current timestamp)."""
    try:
        signature = inspect.signature(assigner, follow_wrapped=False)  # type: ignore[arg-type]
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
            signature = inspect.signature(assigner)  # type: ignore[arg-type]  # a decorator hands its arguments on
    except (TypeError, ValueError):  # many built-ins have none
        return False
    for arguments in (1, 2):
        try:
            signature.bind(*[None] * arguments)
        except TypeError:
            continue
        return arguments == 2
    return False


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """Group of sources that wait for one another.

    Attributes:
        group: name of the group.
        max_drift_ms: ms of event time by which a source may be ahead of the slowest before it pauses.
        update_interval_ms: ms of processing time between two comparisons.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int = 1000


@dataclass(frozen=True)
class WatermarkStrategy(Generic[T]):
    """Timestamps and watermarks of a stream: made by one of the ``for_`` methods, refined by ``with_``.

    Attributes:
        generator: makes a generator, one per split or subtask.
        assigner: from a record to its timestamp, in ms since the epoch or as an aware datetime; None: the one
            that it has.
        idleness_ms: a split without records for this long is idle; None: never.
        alignment: with which sources to stay in step; None: with none.
        by_times: whether the generator looks at timestamps alone. To others, rows of columns come whole.
    """

    generator: Callable[[], WatermarkGenerator[Any]]
    assigner: Callable[[T], Instant] | Callable[[T, int], Instant] | TimestampAssigner[T] | None = None
    idleness_ms: int | None = None
    alignment: WatermarkAlignment | None = None
    by_times: bool = False

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy[Any]:
        """Return the strategy for timestamps that never go back within a split."""
        return WatermarkStrategy(lambda: BoundedOutOfOrderness(0), by_times=True)

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: timedelta | int | str) -> WatermarkStrategy[Any]:
        """Return the strategy for records out of order.

        Args:
            bound: largest distance in event time by which a record may follow a later one: a timedelta, ms, or a
                text such as ``"5s"``.

        Raises:
            ConfigurationError: it is no duration, or negative.
        """
        bound_ms = _duration("for_bounded_out_of_orderness", bound)
        return WatermarkStrategy(lambda: BoundedOutOfOrderness(bound_ms), by_times=True)

    @classmethod
    def for_generator(cls, factory: Callable[[], WatermarkGenerator[Any]]) -> WatermarkStrategy[Any]:
        """Return the strategy with watermarks of your own.

        Args:
            factory: makes a generator, without arguments; called once per split or subtask.
        """
        return WatermarkStrategy(factory)

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[Any]:
        """Return the strategy without watermarks: event time does not advance until the input ends."""
        return WatermarkStrategy(NoWatermarks, by_times=True)

    def with_timestamp_assigner(
        self, assigner: Callable[[T], Instant] | Callable[[T, int], Instant] | TimestampAssigner[T]
    ) -> WatermarkStrategy[T]:
        """Take the timestamp from the record.

        A record on which the assigner raises, or for which it returns no point in time, fails the job, or is
        skipped where :meth:`DataStream.on_error` of the step says so. The first timestamp of a subtask is looked
        at: :class:`~sluiceway.errors.TimestampUnitWarning` if it is likely to be in seconds.

        Args:
            assigner: called as ``assigner(record)``, or, if it needs two arguments, as
                ``assigner(record, timestamp so far)``. It returns ms since the epoch (an int, an integer of
                numpy, a whole float) or an aware datetime (``pandas.Timestamp`` is one).

        Raises:
            TypeError: it cannot be called, or it is a class.
        """
        a_class = isinstance(assigner, type) and TimestampAssigner in assigner.__mro__
        if a_class or not (callable(assigner) or isinstance(assigner, TimestampAssigner)):
            raise TypeError(
                "with_timestamp_assigner takes a function of a record, or an object of a subclass of "
                f"TimestampAssigner, not {assigner!r:.60}"
            )
        return replace(self, assigner=assigner)

    def with_timestamp_column(self, name: str) -> WatermarkStrategy[T]:
        """Take the timestamp from a column of a :class:`~sluiceway.table.TableStream`.

        Args:
            name: the column: timestamps (one without a zone is in UTC), or int64 milliseconds since the epoch.
                A row in which it is null fails the job.

        Raises:
            TypeError: not a str.
        """
        if not isinstance(name, str):
            raise TypeError(f"with_timestamp_column takes the name of a column, not {name!r:.60}")
        return replace(self, assigner=ColumnTimestamps(name))

    def with_idleness(self, timeout: timedelta | int | str) -> WatermarkStrategy[T]:
        """Stop waiting for a split without records. One that is back-pressured is not idle.

        Args:
            timeout: processing time without a record after which a split is idle: a timedelta, ms, or a text such
                as ``"1min"``.

        Raises:
            ConfigurationError: it is no duration, or not positive.
        """
        timeout_ms = _duration("with_idleness", timeout)
        if timeout_ms == 0:
            raise ConfigurationError("with_idleness(0): every split would always be idle; give it some time")
        return replace(self, idleness_ms=timeout_ms)

    def with_watermark_alignment(
        self, group: str, max_drift: timedelta | int | str, update_interval: timedelta | int | str = 1000
    ) -> WatermarkStrategy[T]:
        """Pause what is further than ``max_drift`` ahead of the slowest reader of ``group``. Only for sources.

        Single splits pause where the reader can do that, else the reader as a whole. A reader that is idle, at
        its end, without a split to read or without a watermark so far is not waited for.

        Args:
            group: any name; all sources of the job that use it wait for one another, and so do their subtasks.
            max_drift: in event time.
            update_interval: how often readers compare, in processing time: one that waits may learn so much
                later that it need not any more.
        """
        alignment = WatermarkAlignment(
            group,
            _duration("with_watermark_alignment", max_drift),
            max(1, _duration("with_watermark_alignment", update_interval)),
        )
        return replace(self, alignment=alignment)


def _duration(method: str, value: timedelta | int | str) -> int:
    try:
        ms = duration_ms(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{method}({value!r}): {error}") from None
    if ms < 0:
        raise ConfigurationError(f"{method}({value!r}): time cannot run backwards")
    return ms
