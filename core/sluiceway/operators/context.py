"""Context of an operator."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.errors import NotBuiltYetError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.metrics import MetricGroup
from sluiceway.operators.async_calls import Calls
from sluiceway.state import StateBackend
from sluiceway.streamgraph import StreamNode

__all__ = ["OperatorContext"]


def _no_event_loop(wake: Callable[[], None]) -> Calls:
    raise NotBuiltYetError("this engine has no event loop for coroutines")


class OperatorContext(msgspec.Struct, frozen=True):
    """Context that the task passes to an operator.

    Attributes:
        node: the step in the stream graph.
        job_name: the pipeline's name.
        subtask: index of the subtask.
        attempt: number of the attempt.
        key_groups: the key groups of this subtask.
        clock: the runtime's clock.
        state_backend: makes the keyed backend, if the operator has keyed state.
        wake: schedules the task soon; from any thread.
        settings: the options of the run.
        backpressured_s: returns the seconds so far for which the task was blocked by its output.
        metrics: the operator's metrics.
        calls: opens calls in the worker's event loop; its argument is called when some have ended.
    """

    node: StreamNode
    job_name: str
    subtask: int
    attempt: int
    key_groups: KeyGroupRange
    clock: Clock
    state_backend: StateBackend
    wake: Callable[[], None]
    settings: Settings = msgspec.field(default_factory=Settings)
    backpressured_s: Callable[[], float] = float
    metrics: MetricGroup = msgspec.field(default_factory=MetricGroup)
    calls: Callable[[Callable[[], None]], Calls] = _no_event_loop
