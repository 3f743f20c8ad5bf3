"""What every step has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sluiceway.functions import Function, FunctionObject
from sluiceway.types import parameter_type, return_type

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
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
        """The user's function, if the step has one."""
        return getattr(self, "fn", None)

    @property
    def functions(self) -> tuple[object, ...]:
        """What the user gave to be called: none, one, or for some steps with two inputs one per input."""
        return () if self.function is None else (self.function,)

    @property
    def keys(self) -> tuple[Any, ...]:
        """What each input is keyed by, in the order of the ports; None for one that is not keyed."""
        return (getattr(self, "key", None),) + (None,) * (self.ports - 1)

    @property
    def known_side_outputs(self) -> frozenset[str] | None:
        """The names of all side outputs that it may emit to; None: any, as its function says at run time."""
        return None if self.side_outputs else frozenset()

    @property
    def event_time(self) -> bool:
        """Whether it waits for watermarks."""
        return False

    def exchange(self, port: int = 0) -> str | None:
        """The partitioner by which an input must come; None: any will do."""
        return "hash" if self.keyed and self.keys[port] is not None else None

    def returned_type(self) -> Any:
        """What the function returns according to its hints, or None."""
        return None if self.function is None else return_type(self.function, self.method_of(self.function))

    def wanted_types(self, port: int = 0) -> list[Any]:
        """The types that the function or sink asks of its records, where hints say.

        Args:
            port: of which input, for a step with two.
        """
        fn = self.function
        return [] if fn is None else [parameter_type(fn, 0, self.method_of(fn))]

    def output_type(self, *entering: Any) -> Any:
        """The type of the records that come out, or None where hints do not say.

        Args:
            entering: the type of the records that go in at each input, or None.
        """
        return self.returned_type()

    def method_of(self, function: object) -> str | None:
        """A function object is asked for its method, a plain callable for itself."""
        return self.method if isinstance(function, Function) else None

    def with_function(self, function: object) -> Step:
        """The same step with another function. Only for steps that have one."""
        step: Any = self
        changed: Step = replace(step, fn=function)
        return changed

    def with_own_functions(self, own: Callable[[FunctionObject], object]) -> Step:
        """The same step, with what ``own`` makes of each of its function objects."""
        function = self.function
        return self.with_function(own(function)) if isinstance(function, FunctionObject) else self
