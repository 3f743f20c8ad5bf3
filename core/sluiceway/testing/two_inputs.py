"""Harness of a step with two inputs, each fed by the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from sluiceway.api import DataStream
from sluiceway.elements import Batch, Element, Watermark, WatermarkStatus
from sluiceway.network.watermark_valve import WatermarkValve
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.testing.operators import OperatorHarness
from sluiceway.testing.programs import check_control, event_time

__all__ = ["TwoInputOperatorHarness"]


class TwoInputOperatorHarness(OperatorHarness):
    """:class:`OperatorHarness` for a chain whose first step connects two streams.

    Feeding methods have the number of the input at their end. The step sees the lower watermark of both inputs,
    as in a job; an input that was told to be idle does not count.

    Args:
        program: adds the steps to two streams:
            ``lambda first, second: first.key_by(k1).connect(second.key_by(k2)).process(MyFunction())``.
        parallelism: number of subtasks. Records go to the one that owns their key, without a key in turn, those of
            a broadcast stream to all.
        max_parallelism: number of key groups.
        state_backend: name of the state backend.
        restored: begin with the state of this snapshot, which a harness of any parallelism may have taken.
        allow_dropped_state: whether state of that snapshot may be left behind, as with the option of a run.
        start_ms: the first reading of the clock, ms since the epoch.

    Raises:
        GraphError: the program has steps that do not run in one task, or does not connect its streams.
        IncompatibleStateError: a job would not be restored from the snapshot.
    """

    _inputs: ClassVar[int] = 2
    _called: ClassVar[str] = "a TwoInputOperatorHarness"

    def __init__(
        self,
        program: Callable[[DataStream[Any], DataStream[Any]], DataStream[Any]],
        *,
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_backend: str = "memory",
        restored: JobSnapshot | None = None,
        allow_dropped_state: bool = False,
        start_ms: int = 0,
    ) -> None:
        self._valve = WatermarkValve(2)
        super().__init__(
            program,  # type: ignore[arg-type]
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            state_backend=state_backend,
            restored=restored,
            allow_dropped_state=allow_dropped_state,
            start_ms=start_ms,
        )

    def process1(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process one record of the first input, with its event time in ms; return its results."""
        return self._feed(0, [value], None if timestamp is None else [timestamp])

    def process2(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process one record of the second input; return its results."""
        return self._feed(1, [value], None if timestamp is None else [timestamp])

    def process_batch1(self, values: Sequence[Any], timestamps: Sequence[int] | None = None) -> list[Any]:
        """Process a batch of the first input; return its results."""
        return self._feed(0, values, timestamps)

    def process_batch2(self, values: Sequence[Any], timestamps: Sequence[int] | None = None) -> list[Any]:
        """Process a batch of the second input; return its results."""
        return self._feed(1, values, timestamps)

    def process_watermark1(self, timestamp: int) -> list[Any]:
        """Advance the first input's watermark to ``timestamp`` (ms) in every subtask; return the results."""
        return self.process_element1(Watermark(event_time(timestamp)))

    def process_watermark2(self, timestamp: int) -> list[Any]:
        """Advance the second input's watermark to ``timestamp`` (ms); return the results."""
        return self.process_element2(Watermark(event_time(timestamp)))

    def process_element1(self, element: Element) -> list[Any]:
        """Feed a batch or a control element to the first input."""
        return self._element(0, element)

    def process_element2(self, element: Element) -> list[Any]:
        """Feed a batch or a control element to the second input."""
        return self._element(1, element)

    def process_watermark(self, timestamp: int) -> list[Any]:
        """Advance the watermark of both inputs to ``timestamp`` (ms); return the results."""
        return self.process_watermark1(timestamp) + self.process_watermark2(timestamp)

    def process(self, value: Any, timestamp: int | None = None) -> NoReturn:
        """Raise TypeError: a record belongs to one of the two inputs, whose method is to be called."""
        raise TypeError("there are two inputs: use process1() or process2()")

    def process_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None = None) -> NoReturn:
        """Raise TypeError: a record belongs to one of the two inputs, whose method is to be called."""
        raise TypeError("there are two inputs: use process_batch1() or process_batch2()")

    def process_element(self, element: Element) -> NoReturn:
        """Raise TypeError: a record belongs to one of the two inputs, whose method is to be called."""
        raise TypeError("there are two inputs: use process_element1() or process_element2()")

    def _element(self, port: int, element: Element) -> list[Any]:
        match element:
            case Batch():
                return self._feed(port, element.values, element.timestamps)
            case Watermark():
                self._tell_time(*self._valve.watermark(port, element))
            case WatermarkStatus():
                self._tell_time(*self._valve.status(port, element))
            case _:
                check_control(element)
                self._tell(element)
        return self.take()

    def _tell_time(self, status: WatermarkStatus | None, risen: Watermark | None) -> None:
        self._tell(risen)
        self._tell(status)

    def _tell(self, element: Element | None) -> None:
        if element is not None:
            for subtask in self._open_subtasks:
                subtask.control(element)
