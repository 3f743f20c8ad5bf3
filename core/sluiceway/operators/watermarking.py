"""Timestamps and watermarks, batch by batch: what a source and a step in the middle of a stream share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, Final

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch
from sluiceway.errors import FunctionContractError
from sluiceway.eventtime import (
    BoundedOutOfOrderness,
    NoWatermarks,
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from sluiceway.faults import record_loop, shown

__all__ = ["GeneratorWatch", "Stamper", "cut_batch"]

_ONLY_INTS: Final = {int}
# These have nothing new to say between two records.
_PASSIVE: Final = (BoundedOutOfOrderness, NoWatermarks)


def _are_times(batch: Batch[Any]) -> bool:
    """Whether the timestamps are times for certain: sum and span cost less than to look at the type of each."""
    try:
        lowest, highest = batch.span()
        return type(sum(batch.timestamps)) is int and lowest > 1 and highest <= MAX_WATERMARK  # type: ignore[arg-type]
    except Exception:
        return False


class Stamper:
    """Gives the records of a batch their event times.

    Args:
        strategy: whose assigner it runs.
        step: name of the step, for messages.
    """

    def __init__(self, strategy: WatermarkStrategy[Any], step: str) -> None:
        assigner = strategy.assigner
        self.step_name = step
        self._assign: Callable[[Any], int] | None = None
        self._extract: Callable[[Any, int], int] | None = None
        if isinstance(assigner, TimestampAssigner):
            self._extract = assigner.extract_timestamp
        else:
            self._assign = assigner

    def stamp(self, batch: Batch[Any]) -> Batch[Any]:
        """The batch with the timestamps that the assigner gives; without an assigner, the batch itself.

        Raises:
            FunctionContractError: the assigner gave something other than an int of at most 64 bits.
        """
        if self._assign is not None:
            stamps = self._assigned(self._assign, batch.values)
        elif self._extract is not None:
            stamps = self._extracted(self._extract, batch.values, batch.timestamps)
        else:
            return batch
        stamped = Batch(batch.values, stamps, batch.keys)
        if not _are_times(stamped):
            self._check(batch.values, stamps)
        return stamped

    @record_loop
    def _assigned(self, assign: Callable[[Any], int], values: list[Any]) -> list[int]:
        left = iter(values)
        try:
            return [assign(value) for value in left]
        except Exception:
            value = values[len(values) - length_hint(left) - 1]  # noqa: F841 (for who looks for the record)
            raise

    @record_loop
    def _extracted(
        self, extract: Callable[[Any, int], int], values: list[Any], before: list[int] | None
    ) -> list[int]:
        left = iter(values)
        given = [MIN_WATERMARK] * len(values) if before is None else before
        try:
            return [extract(value, timestamp) for value, timestamp in zip(left, given, strict=True)]
        except Exception:
            value = values[len(values) - length_hint(left) - 1]  # noqa: F841
            raise

    @record_loop
    def _check(self, values: list[Any], stamps: list[Any]) -> None:
        if set(map(type, stamps)) == _ONLY_INTS and min(stamps) >= MIN_WATERMARK and max(stamps) <= MAX_WATERMARK:
            return
        for value, stamp in zip(values, stamps, strict=True):
            if type(stamp) is not int:
                raise FunctionContractError(
                    f"the timestamp assigner of step {self.step_name!r} must return milliseconds since the epoch "
                    f"as an int; for {shown(value, 100)} it returned {shown(stamp, 100)} ({type(stamp).__name__})"
                )
            if not MIN_WATERMARK <= stamp <= MAX_WATERMARK:
                raise FunctionContractError(
                    f"the timestamp assigner of step {self.step_name!r} must return milliseconds since the epoch "
                    f"in 64 bits; for {shown(value, 100)} it returned {stamp:.3e}"
                )


class _Said(WatermarkOutput):
    """What a generator has said so far."""

    def __init__(self, step: str) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False
        self._step = step

    def emit_watermark(self, timestamp: int) -> None:
        if type(timestamp) is not int:
            raise FunctionContractError(
                f"the watermark generator of step {self._step!r} must emit milliseconds since the epoch as an "
                f"int, not {shown(timestamp, 100)} ({type(timestamp).__name__})"
            )
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
    """One watermark generator, and what it has said: of a split, or of a subtask.

    Args:
        strategy: makes the generator.
        step: name of the step, for messages.

    Attributes:
        passive: whether it has news only after records.

    Raises:
        FunctionContractError: what the strategy makes is no generator.
    """

    def __init__(self, strategy: WatermarkStrategy[Any], step: str) -> None:
        generator = strategy.generator()
        if not isinstance(generator, WatermarkGenerator):
            raise FunctionContractError(
                f"the watermark strategy of step {step!r} must make a WatermarkGenerator; for_generator(factory) "
                f"was given a factory that returned {shown(generator, 100)} ({type(generator).__name__})"
            )
        self.step_name = step
        self.passive = type(generator) in _PASSIVE
        self._generator = generator
        self._said = _Said(step)
        self._silent = type(generator) is NoWatermarks
        # This one looks at the highest timestamp alone.
        self._by_highest = type(generator) is BoundedOutOfOrderness
        # Who does not look at whole batches is asked after each record, so that no watermark loses its place.
        self._by_record = type(generator).on_batch is WatermarkGenerator.on_batch

    @property
    def watermark(self) -> int:
        """The highest watermark so far, in ms."""
        return self._said.watermark

    @property
    def idle(self) -> bool:
        """Whether the generator has said that there is nothing to wait for."""
        return self._said.idle

    def kept(self) -> tuple[Any, ...]:
        """The generator and what it has said, for :meth:`go_on` in another process."""
        return self._generator, self._said.watermark, self._said.idle

    def go_on(self, kept: tuple[Any, ...]) -> None:
        """Go on with the generator of an earlier one."""
        self._generator, self._said.watermark, self._said.idle = kept

    def observe(self, batch: Batch[Any]) -> Sequence[tuple[int, int]]:
        """Show a batch to the generator.

        Returns:
            where the watermark rose: after how many of the records, and to what.

        Raises:
            FunctionContractError: the records have no timestamps.
        """
        self._said.idle = False
        if self._silent:
            return ()
        stamps = batch.timestamps
        if stamps is None:
            raise FunctionContractError(
                f"the records that come to step {self.step_name!r} have no timestamps, so there is nothing to "
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
            on_event(value, timestamp, said)
            if said.watermark > before:
                before = said.watermark
                rises.append((count, before))
        return rises

    def ask(self) -> None:
        """Let the generator say what it says now and then."""
        self._generator.on_periodic_emit(self._said)


def cut_batch(batch: Batch[Any], start: int, end: int | None) -> Batch[Any]:
    """The records from ``start`` up to ``end``."""
    part = slice(start, end)
    return Batch(
        batch.values[part],
        None if batch.timestamps is None else batch.timestamps[part],
        None if batch.keys is None else batch.keys[part],
    )
