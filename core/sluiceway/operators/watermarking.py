"""Timestamps and watermarks of batches, for sources and for steps in the middle of a stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, Final, Protocol

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch
from sluiceway.errors import FunctionContractError, TimestampUnitWarning
from sluiceway.eventtime import (
    BoundedOutOfOrderness,
    ColumnTimestamps,
    NoWatermarks,
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    takes_record_timestamp,
)
from sluiceway.operators.skipped_records import without
from sluiceway.record_errors import MISSING, record_loop, shown
from sluiceway.util.instants import WANTED, Instant, instant_ms, look_like_seconds

__all__ = ["GeneratorWatch", "Stamper"]

_ONLY_INTS: Final = {int}
# These generators emit nothing new between two records.
_PASSIVE: Final = (BoundedOutOfOrderness, NoWatermarks)


def _are_times(batch: Batch[Any]) -> bool:
    """Return whether all timestamps are certainly times; sum and span cost less than a test of each type."""
    try:
        lowest, highest = batch.span()
        # The sum is an int only of ints and bools, and bools are at most 1.
        return type(sum(batch.timestamps)) is int and lowest > 1 and highest <= MAX_WATERMARK  # type: ignore[arg-type]
    # Such as datetimes: each is converted, or refused with its record.
    except Exception:
        return False


class Skipping(Protocol):
    """Receiver of records on which an assigner raises."""

    skipping: bool

    def take(
        self, error: Exception, value: Any, timestamp: int | None, key: Any = MISSING, text: str | None = None
    ) -> bool:
        """Keep a record; return False if the step fails and must raise the error."""


class Stamper:
    """Event times of the records of a batch.

    Args:
        strategy: the strategy with the assigner.
        step: name of the step, for messages.
        dead: receives records on which the assigner raises, where the step skips them.
    """

    def __init__(self, strategy: WatermarkStrategy[Any], step: str, dead: Skipping | None = None) -> None:
        assigner = strategy.assigner
        self.step_name = step
        self._dead = dead if dead is not None and dead.skipping else None
        self._assign: Callable[[Any], Any] | None = None
        self._extract: Callable[[Any, int], Any] | None = None
        self._looked = False
        self._column = assigner if isinstance(assigner, ColumnTimestamps) else None
        if isinstance(assigner, TimestampAssigner):
            self._extract = assigner.extract_timestamp
        elif assigner is not None and takes_record_timestamp(assigner):
            self._extract = assigner  # type: ignore[assignment]
        else:
            self._assign = assigner  # type: ignore[assignment]

    def stamp(self, batch: Batch[Any]) -> Batch[Any]:
        """Return the batch with the assigner's timestamps, without the skipped records.

        Without an assigner, that is the batch itself.

        Raises:
            FunctionContractError: the assigner returned no point in time, or one beyond 64 bits.
        """
        if self._assign is None and self._extract is None:
            return batch
        if self._column is not None and batch.columns is not None:
            batch = self._of_columns(self._column, batch)
            if not self._looked and len(batch):
                self._looked = True
                if look_like_seconds(batch.timestamps[0]):  # type: ignore[index]
                    warn_of_seconds(f"column {self._column.name!r} of step {self.step_name!r} has")
            return batch
        if self._dead is not None:
            batch = self._carefully(batch, self._dead)
        else:
            if self._assign is not None:
                stamps = self._assigned(self._assign, batch.values)
            else:
                assert self._extract is not None
                stamps = self._extracted(self._extract, batch.values, batch.timestamps)
            stamped = Batch(batch.values, stamps, batch.keys)
            if not _are_times(stamped):
                stamped = Batch(batch.values, self._converted(batch.values, stamps), batch.keys)
            batch = stamped
        # Only the first timestamp is looked at, to warn of an assigner that returns seconds.
        if not self._looked and batch.values:
            self._looked = True
            assert batch.timestamps is not None
            if look_like_seconds(batch.timestamps[0]):
                warn_of_seconds(f"the timestamp assigner of step {self.step_name!r} returns")
        return batch

    def _of_columns(self, column: ColumnTimestamps, batch: Batch[Any]) -> Batch[Any]:
        data = batch.columns
        assert data is not None
        try:
            return Batch.of_columns(data, column.of_columns(data, self.step_name))
        except FunctionContractError:
            if self._dead is None:
                raise
        return self._without_missing(column, data, batch.timestamps, self._dead)

    def _without_missing(
        self, column: ColumnTimestamps, data: Any, before: Sequence[int] | None, dead: Skipping
    ) -> Batch[Any]:
        """Assign event times, without the rows that have none."""
        import pyarrow as pa  # optional

        from sluiceway.columns.schemas import from_outside
        from sluiceway.util.arrow_values import row_as_text

        data = from_outside(data)  # of a source: Arrow takes no rows of views
        missing = column.missing_in(data)
        for at in missing.nonzero()[0].tolist():
            row = data.take(pa.array([at]))  # a slice would be pickled with all of its batch
            try:
                column.of_columns(row, self.step_name)
            except FunctionContractError as error:
                if not dead.take(error, row, None if before is None else before[at], text=row_as_text(row)):
                    raise
        left = data.filter(pa.array(~missing))
        return Batch.of_columns(left, column.of_columns(left, self.step_name))

    @record_loop
    def _assigned(self, assign: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        left = iter(values)
        try:
            # Not named ``value``: since Python 3.12 a variable of a comprehension belongs to the function.
            return [assign(each) for each in left]
        except Exception:
            value = values[len(values) - length_hint(left) - 1]  # noqa: F841 (for who looks for the record)
            raise

    @record_loop
    def _extracted(
        self, extract: Callable[[Any, int], Any], values: list[Any], before: list[int] | None
    ) -> list[Any]:
        left = iter(values)
        given = [MIN_WATERMARK] * len(values) if before is None else before
        try:
            return [extract(each, was) for each, was in zip(left, given, strict=True)]
        except Exception:
            value = values[len(values) - length_hint(left) - 1]  # noqa: F841
            raise

    @record_loop
    def _converted(self, values: list[Any], stamps: list[Any]) -> list[int]:
        if set(map(type, stamps)) == _ONLY_INTS and min(stamps) >= MIN_WATERMARK and max(stamps) <= MAX_WATERMARK:
            return stamps
        converted: list[int] = []
        for value, stamp in zip(values, stamps, strict=True):
            converted.append(self._time(value, stamp))
        return converted

    @record_loop
    def _carefully(self, batch: Batch[Any], dead: Skipping) -> Batch[Any]:
        """Assign timestamps record by record, without the records on which the assigner raises."""
        assign, extract, before, keys = self._assign, self._extract, batch.timestamps, batch.keys
        stamps: list[int] = []
        skipped: list[int] = []
        for number, value in enumerate(batch.values):
            given = MIN_WATERMARK if before is None else before[number]
            try:
                if assign is not None:
                    stamp = assign(value)
                else:
                    assert extract is not None
                    stamp = extract(value, given)
                stamps.append(self._time(value, stamp))
            except Exception as error:
                was = None if before is None else given
                if batch.columns is not None:
                    taken = self._take_row(dead, error, batch.columns, number, was)
                else:
                    taken = dead.take(error, value, was, MISSING if keys is None else keys[number])
                if not taken:
                    raise
                skipped.append(number)
        if not skipped:
            return Batch(batch.values, stamps, keys)
        if batch.columns is not None:
            return Batch.of_columns(self._rows(batch.columns, without(list(range(len(batch))), skipped)), stamps)
        return Batch(without(batch.values, skipped), stamps, None if keys is None else without(keys, skipped))

    def _take_row(self, dead: Skipping, error: Exception, data: Any, number: int, before: int | None) -> bool:
        from sluiceway.util.arrow_values import row_as_text

        row = self._rows(data, [number])
        return dead.take(error, row, before, text=row_as_text(row))

    def _rows(self, data: Any, numbers: Sequence[int]) -> Any:
        """Return some rows of a batch in columns."""
        import pyarrow as pa  # optional

        from sluiceway.columns.schemas import from_outside

        return from_outside(data).take(pa.array(numbers, pa.int64()))

    def _time(self, value: Any, stamp: Any) -> int:
        """Return the assigner's timestamp of a record in ms since the epoch."""
        try:
            ms = instant_ms(stamp)
        except ValueError as error:
            hint = f"; {error}" if str(error) else ""
            raise FunctionContractError(
                f"the timestamp assigner of step {self.step_name!r} must return {WANTED}; for "
                f"{shown(value, 100)} it returned {shown(stamp, 100)} ({type(stamp).__name__}){hint}"
            ) from None
        if not MIN_WATERMARK <= ms <= MAX_WATERMARK:
            raise FunctionContractError(
                f"the timestamp assigner of step {self.step_name!r} must return milliseconds since the epoch "
                f"in 64 bits; for {shown(value, 100)} it returned {ms:.3e}"
            )
        return ms


def warn_of_seconds(who: str) -> None:
    """Warn of timestamps that look like seconds, once per text and process."""
    warnings.warn(
        f"{who} timestamps that are likely to be in seconds: as milliseconds since the epoch they are in early "
        "1970. Multiply them by 1000",
        TimestampUnitWarning,
        stacklevel=2,
    )


class _Said(WatermarkOutput):
    """Output of a generator so far."""

    def __init__(self, step: str) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False
        self._step = step

    def emit_watermark(self, timestamp: Instant) -> None:
        if type(timestamp) is not int:
            try:
                timestamp = instant_ms(timestamp)
            except ValueError as error:
                hint = f"; {error}" if str(error) else ""
                raise FunctionContractError(
                    f"the watermark generator of step {self._step!r} must emit {WANTED}, not "
                    f"{shown(timestamp, 100)} ({type(timestamp).__name__}){hint}"
                ) from None
        if timestamp > self.watermark:
            if timestamp > MAX_WATERMARK:
                raise FunctionContractError(
                    f"the watermark generator of step {self._step!r} must emit milliseconds since the epoch in 64 "
                    f"bits, not {timestamp:.3e}; the end of time is {MAX_WATERMARK}"
                )
            self.watermark = timestamp
            self.idle = False

    def mark_idle(self) -> None:
        self.idle = True

    def mark_active(self) -> None:
        self.idle = False


class GeneratorWatch:
    """Watermark generator of a split or a subtask, and its output so far.

    Args:
        strategy: makes the generator.
        step: name of the step, for messages.

    Attributes:
        passive: True if the generator emits only after records.

    Raises:
        FunctionContractError: the strategy makes no generator.
    """

    def __init__(self, strategy: WatermarkStrategy[Any], step: str) -> None:
        try:
            generator = strategy.generator()
        except TypeError as error:  # for example an abstract class: no line of the user's is in its traceback
            raise FunctionContractError(
                f"the factory of the watermark strategy of step {step!r} makes no WatermarkGenerator: {error}"
            ) from error
        if not isinstance(generator, WatermarkGenerator):
            raise FunctionContractError(
                f"the watermark strategy of step {step!r} must make a WatermarkGenerator; for_generator(factory) "
                f"was given a factory that returned {shown(generator, 100)} ({type(generator).__name__})"
            )
        self.step_name = step
        # By exact types here and below: a subclass may override the methods that are passed over.
        self.passive = type(generator) in _PASSIVE
        self._generator = generator
        self._said = _Said(step)
        self._silent = type(generator) is NoWatermarks
        # This generator depends on the highest timestamp only.
        self._by_highest = type(generator) is BoundedOutOfOrderness
        # A generator that does not process whole batches is called after each record, so that no watermark loses
        # its place.
        self._by_record = type(generator).on_batch is WatermarkGenerator.on_batch

    @property
    def watermark(self) -> int:
        """Highest watermark so far, in ms."""
        return self._said.watermark

    @property
    def idle(self) -> bool:
        """True if the generator has marked its output idle."""
        return self._said.idle

    def kept(self) -> tuple[Any, ...]:
        """Generator and its output, for :meth:`go_on` in another process."""
        return self._generator, self._said.watermark, self._said.idle

    def go_on(self, kept: tuple[Any, ...]) -> None:
        """Restore the generator of an earlier watch."""
        self._generator, self._said.watermark, self._said.idle = kept

    def observe(self, batch: Batch[Any]) -> Sequence[tuple[int, int]]:
        """Pass a batch to the generator.

        Returns:
            the rises of the watermark, as pairs: number of records before it, and watermark.

        Raises:
            FunctionContractError: the records have no timestamps.
        """
        self._said.idle = False
        if self._silent:
            return ()
        stamps = batch.timestamps
        if stamps is None:
            raise FunctionContractError(
                f"the records that arrive at step {self.step_name!r} have no timestamps, so there is nothing to "
                "make watermarks from: add with_timestamp_assigner(function of a record) to the watermark "
                "strategy, or have the source give timestamps"
            )
        if self._by_record:
            return self._observe_each(batch.values, stamps)
        before = self._said.watermark
        if self._by_highest:
            self._generator.on_event(None, batch.span()[1], self._said)
        else:
            self._generator.on_batch(batch.values, stamps, self._said)
        return ((len(stamps), self._said.watermark),) if self._said.watermark > before else ()

    @record_loop
    def _observe_each(self, values: list[Any], stamps: list[int]) -> list[tuple[int, int]]:
        said = self._said
        on_event = self._generator.on_event
        before = said.watermark
        rises = []
        for count, (value, timestamp) in enumerate(zip(values, stamps, strict=True), 1):
            said.idle = False  # for each record, as a result must not depend on where a batch ends
            on_event(value, timestamp, said)
            if said.watermark > before:
                before = said.watermark
                rises.append((count, before))
        return rises

    def ask(self) -> None:
        """Call the generator's periodic method."""
        self._generator.on_periodic_emit(self._said)
