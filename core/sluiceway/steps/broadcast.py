"""Step of a stream and a broadcast stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sluiceway.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction, KeySelector
from sluiceway.state import MapStateDescriptor
from sluiceway.steps.co import ConnectedStep, elements
from sluiceway.util.overriding import override

__all__ = ["BroadcastProcessStep"]


class BroadcastProcessStep(ConnectedStep, frozen=True):
    """Step of a process function of a stream, keyed or not, and a broadcast stream.

    Attributes:
        fn: the function.
        key: what the first input is keyed by; None: it is not.
        key2: always None.
        descriptors: the broadcast states that it may use.
    """

    fn: BroadcastProcessFunction[Any, Any, Any] | KeyedBroadcastProcessFunction[Any, Any, Any, Any]
    key: Callable[[Any], Any] | KeySelector[Any, Any] | None = None
    key2: None = None
    descriptors: tuple[MapStateDescriptor, ...] = ()
    kind: ClassVar[str] = "broadcast_process"
    side_outputs: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """True if the first input is keyed."""
        return self.key is not None

    @property
    def keys(self) -> tuple[Any, ...]:
        """Key selectors; only the first input may have one."""
        return (self.key, None)

    def exchange(self, port: int = 0) -> str | None:
        """Return the broadcast partitioner for the second input."""
        return "broadcast" if port == 1 else super().exchange(port)

    def function_of(self, port: int) -> tuple[Any, str | None]:
        """Return the method of an input."""
        return self.fn, ("process_element", "process_broadcast_element")[port]

    @override
    def output_type(self, *entering: Any) -> Any:
        return elements(self.returned_types())
