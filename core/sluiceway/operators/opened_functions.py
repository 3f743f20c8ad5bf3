"""Function objects of an operator that were opened, to be closed once."""

from __future__ import annotations

from sluiceway.functions import CheckpointedFunction, Function
from sluiceway.functions.life import note_closed, note_opened
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.runtime_context import OperatorRuntimeContext
from sluiceway.record_errors import record_loop

__all__ = ["Opened", "may_ask_for_state"]


def may_ask_for_state(function: object) -> bool:
    """Return whether a function object can declare state per key: in ``open()`` or ``initialize_state()``."""
    if isinstance(function, CheckpointedFunction):
        return True
    return isinstance(function, Function) and type(function).open is not Function.open


class _Life:
    """Function object and its step, which an error in opening or closing names."""

    def __init__(self, function: Function, context: OperatorContext, store: KeyedStateStore | None) -> None:
        self.step_name = context.node.name
        self._function = function
        self._runtime = OperatorRuntimeContext(context, store)

    @record_loop
    def open(self) -> None:
        note_opened(self._function)
        self._function.open(self._runtime)

    @record_loop
    def close(self) -> None:
        try:
            self._function.close()
        finally:
            note_closed(self._function)


class Opened(list[_Life]):
    """Function objects that were opened and not closed yet."""

    def open(self, function: object, context: OperatorContext, store: KeyedStateStore | None = None) -> None:
        """Open a function if it is an object with a life cycle.

        Args:
            function: the step's function.
            context: context of the step.
            store: its keyed state, or None where it is not keyed.
        """
        if isinstance(function, Function):
            life = _Life(function, context, store)
            # Before open(): a function whose open() has failed is closed, too.
            self.append(life)
            life.open()

    def close(self) -> None:
        """Close all, in the order in which they were opened, each once; then raise the first error."""
        first: BaseException | None = None
        while self:
            try:
                self.pop(0).close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
