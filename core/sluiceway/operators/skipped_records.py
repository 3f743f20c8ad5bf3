"""Skipping of records on which a function raises: their dead letters, and the limit of their number."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from itertools import groupby
from types import FrameType
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, NotBuiltYetError, StateError
from sluiceway.functions import DEAD_LETTERS, DeadLetter
from sluiceway.operators.base import Output
from sluiceway.operators.context import OperatorContext
from sluiceway.record_errors import MISSING, shown
from sluiceway.serializers import PickleSerializer
from sluiceway.streamgraph import StreamNode

__all__ = ["DeadLetters", "dead_letter_output", "without"]

_SHOWN: Final = 10_000
"""Longest text of a record, in characters."""

_NOT_SKIPPED: Final = (StateError, NotBuiltYetError, ConfigurationError, MemoryError, BdbQuit)
"""Errors that the record did not cause: the next record would fail as well.

A worker refuses breakpoint() with a ConfigurationError, and pdb raises BdbQuit for its command quit.
"""


class DeadLetters:
    """Handling of records on which a step's function raises, in one subtask.

    Loops call :meth:`take` from an ``except`` clause, which costs nothing until an exception is raised.

    Args:
        context: context of the step.
        output: name of the side output of the letters.

    Attributes:
        skipping: True if records are skipped.
        input: the input that the current loop reads.
    """

    def __init__(self, context: OperatorContext, output: str = DEAD_LETTERS.name) -> None:
        self.skipping = context.node.skips_errors
        self._context = context
        self._output = output
        self.input = 0
        # Per attempt: the count is in no snapshot.
        self._taken = 0
        self._waiting: list[DeadLetter] = []

    def take(
        self,
        error: Exception,
        value: Any,
        timestamp: int | None,
        key: Any = MISSING,
        text: str | None = None,
        *,
        undecoded: bool = False,
    ) -> bool:
        """Make a dead letter of a record that cannot be processed; False if the step fails and must raise.

        Args:
            error: what was raised.
            value: the record.
            timestamp: its event time.
            key: its key.
            text: the record for people; None: its representation.
            undecoded: True if a source could not decode it.
        """
        node = self._context.node
        if not self.skipping or isinstance(error, _NOT_SKIPPED):
            return False
        if self._taken == node.max_dead_letters:
            error.add_note(f"step {node.name!r} skips at most {self._taken} records in a subtask, and has done so")
            return False
        self._taken += 1
        self._context.metrics.counter("deadLetters").inc()
        self._waiting.append(self._letter(error, value, timestamp, key, text, undecoded))
        return True

    def _letter(
        self, error: Exception, value: Any, timestamp: int | None, key: Any, text: str | None, undecoded: bool
    ) -> DeadLetter:
        context = self._context
        raised = error.__traceback__
        # A traceback begins at the user's frame; the innermost one stays in any case, so that it is never empty.
        while raised is not None and raised.tb_next is not None and _is_ours(raised.tb_frame):
            raised = raised.tb_next
        return DeadLetter(
            job=context.job_name,
            step=context.node.name,
            uid=context.node.uid,
            subtask=context.subtask,
            attempt=context.attempt,
            error="".join(traceback.format_exception_only(error)).strip(),
            traceback="".join(traceback.format_exception(type(error), error, raised)),
            record=shown(value, _SHOWN) if text is None else text[:_SHOWN],
            data=_pickled(value),
            key=None if key is MISSING else shown(key),
            timestamp=timestamp,
            time_ms=context.clock.now_ms(),
            input=self.input,
            undecoded=undecoded,
        )

    def give(self, output: Output) -> None:
        """Emit the letters added since the last call."""
        if self._waiting:
            letters, self._waiting = self._waiting, []
            # A batch has timestamps for all of its records or for none.
            for stamped, some in groupby(letters, lambda letter: letter.timestamp is not None):
                part = list(some)
                stamps: Any = [letter.timestamp for letter in part] if stamped else None
                output.side(self._output, Batch(part, stamps))


def dead_letter_output(node: StreamNode, last: StreamNode) -> str:
    """Return the name of a step's side output for dead letters in the operator that ends with ``last``."""
    return DEAD_LETTERS.name if node is last else f"{DEAD_LETTERS.name} of {node.id}"


def without(items: list[Any], dropped: list[int]) -> list[Any]:
    """Return a list without the items at some indices."""
    gone = set(dropped)
    return [item for index, item in enumerate(items) if index not in gone]


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to the engine, which does not help a user whose function has raised."""
    module: str = frame.f_globals.get("__name__", "sluiceway.")  # generated loops have none
    return module.startswith("sluiceway.")


def _pickled(value: Any) -> bytes | None:
    try:
        return PickleSerializer().dumps(value)
    # The letter still has the record as text; only a replay needs the pickled one.
    except Exception:
        return None
