"""Dead letters of steps that skip records on which their function raises."""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass, fields
from typing import Any, Final

from sluiceway.errors import SerializationError
from sluiceway.functions.base import OutputTag, engine_tag
from sluiceway.persisted import persisted

__all__ = ["DEAD_LETTERS", "DeadLetter"]


@persisted("DeadLetter")
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Record that a step has skipped because its function raised: texts and bytes, not the record itself.

    Attributes:
        job: name of the pipeline.
        step: name of the step.
        uid: uid of the step.
        subtask: index of the subtask.
        attempt: number of the subtask's attempt, from 0.
        error: the exception, in a line: ``ValueError: no such room``.
        traceback: its traceback, from the user's function on.
        record: ``repr`` of the record, cut where it is very long.
        data: the record, pickled; None where it cannot be pickled.
        key: ``repr`` of its key, or None where the step is not keyed or the key could not be computed.
        timestamp: its event time in ms, or None.
        time_ms: time at which it was skipped, in ms since the epoch.
        input: index of the step's input: 0, or 1 for the second one of connected streams.
        undecoded: True if a source could not decode the record, so that no step takes it as it is.
    """

    job: str
    step: str
    uid: str
    subtask: int
    attempt: int
    error: str
    traceback: str
    record: str
    data: bytes | None
    key: str | None
    timestamp: int | None
    time_ms: int
    input: int = 0
    undecoded: bool = False

    def __setstate__(self, state: list[Any]) -> None:
        # Checkpoints of earlier versions hold letters without the last field.
        for field, value in zip(fields(self), [*state, False], strict=False):
            object.__setattr__(self, field.name, value)

    @property
    def replayable(self) -> bool:
        """True if the step that skipped the record can be given it again."""
        return self.data is not None and not self.undecoded

    def value(self) -> Any:
        """Return the record. It is unpickled, which can run any code: only for letters of your own jobs.

        Raises:
            SerializationError: the record could not be pickled, or it cannot be unpickled here.
        """
        if self.data is None:
            raise SerializationError(
                f"a record that step {self.step!r} skipped could not be pickled: {self.record:.200}"
            )
        try:
            return _Unpickler(io.BytesIO(self.data)).load()
        except Exception as error:
            raise SerializationError(
                f"a record that step {self.step!r} skipped cannot be unpickled ({type(error).__name__}: {error})"
                f": {self.record:.200}"
            ) from error


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds the classes of a script, run as a program or by the command line."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _SCRIPTS:
            top = name.partition(".")[0]
            there = (m for m in (module, *_SCRIPTS) if hasattr(sys.modules.get(m), top))
            module = next(there, module)
        return super().find_class(module, name)


_SCRIPTS: Final = ("__main__", "__sluiceway__")

DEAD_LETTERS: Final[OutputTag[DeadLetter]] = engine_tag("dead letters", DeadLetter)
"""The side output of all steps that can skip records; no function emits to it."""
