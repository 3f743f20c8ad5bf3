"""Base of all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from sluiceway.functions import Function, FunctionObject
from sluiceway.types import parameter_type, return_type

__all__ = ["Step"]


class Step(msgspec.Struct, frozen=True):
    """Base of all steps.

    Attributes:
        kind: the word for the step in plans and messages.
        ports: how many inputs it has: 1 or 2.
        stateful: whether it keeps state that a checkpoint would hold.
        record_wise: whether it can be fused with its neighbours into one loop.
        keyed: whether its input must come by a hash exchange; such a step has a ``key``. One with two inputs
            says in :attr:`keys` which of them.
        side_outputs: whether its function may emit to side outputs.
        skips: whether it can skip a record on which its function raises.
        method: what the function is called by where it is a function object, or None.
    """

    kind: ClassVar[str]
    ports: ClassVar[int] = 1
    stateful: ClassVar[bool] = False
    record_wise: ClassVar[bool] = False
    keyed: ClassVar[bool] = False
    side_outputs: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    method: ClassVar[str | None] = None

    @property
    def function(self) -> object | None:
        """Function of the user, or None."""
        return getattr(self, "fn", None)

    @property
    def functions(self) -> tuple[object, ...]:
        """Callables of the user: none, one, or for some steps with two inputs one per input."""
        return () if self.function is None else (self.function,)

    @property
    def keys(self) -> tuple[Any, ...]:
        """Key selector of each input, in the order of the ports; None for an input without keys."""
        return (getattr(self, "key", None),) + (None,) * (self.ports - 1)

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """Names of all possible side outputs; None: any, chosen by its function at run time."""
        return None if self.side_outputs else frozenset()

    @property
    def event_time(self) -> bool:
        """True if the step waits for watermarks."""
        return False

    def exchange(self, port: int = 0) -> str | None:
        """Return the partitioner that an input requires; None: any."""
        return "hash" if self.keyed and self.keys[port] is not None else None

    def returned_type(self) -> Any:
        """Return the result type of the function according to its hints, or None."""
        return None if self.function is None else return_type(self.function, self.method_of(self.function))

    def wanted_types(self, port: int = 0) -> list[Any]:
        """Return the record types that the function or sink declares by hints."""
        fn = self.function
        return [] if fn is None else [parameter_type(fn, 0, self.method_of(fn))]

    def output_type(self, *entering: Any) -> Any:
        """Return the type of output records, or None if hints do not declare it."""
        return self.returned_type()

    def side_type(self, name: str, *entering: Any) -> Any:
        """Return the type of the records of a side output whose tag declares none, or None if unknown."""
        return None

    def method_of(self, function: object) -> str | None:
        """Return the method of a function object, or the plain callable itself."""
        return self.method if isinstance(function, Function) else None

    def with_function(self, function: object) -> Step:
        """Return the step with another function. Only for steps that have one."""
        step: Any = self
        changed: Step = msgspec.structs.replace(step, fn=function)
        return changed

    def with_own_functions(self, own: Callable[[FunctionObject], object]) -> Step:
        """Return the step with ``own(function)`` in place of each of its function objects."""
        function = self.function
        return self.with_function(own(function)) if isinstance(function, FunctionObject) else self
