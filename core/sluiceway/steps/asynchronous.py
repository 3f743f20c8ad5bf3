"""Step of coroutine functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, get_args, get_origin

from sluiceway.functions import AsyncFunction, AsyncRetryStrategy
from sluiceway.steps.base import Step
from sluiceway.types import element_type

__all__ = ["AsyncStep"]


class AsyncStep(Step, frozen=True):
    """Step that calls a coroutine function for each record, with many calls in flight.

    Attributes:
        fn: an AsyncFunction, or a coroutine function that gives one result.
        timeout_ms: how long a record may take, all attempts together; None: any time.
        capacity: how many records may be under way, those included whose results wait for their turn.
        ordered: whether results come in the order of the records; else only watermarks keep their place.
        retry: when to call again; None: never.
    """

    fn: AsyncFunction[Any, Any] | Callable[[Any], Awaitable[Any]]
    timeout_ms: int | None
    capacity: int
    ordered: bool
    retry: AsyncRetryStrategy | None = None
    kind: ClassVar[str] = "async_map"
    method: ClassVar[str | None] = "async_invoke"
    stateful: ClassVar[bool] = True
    skips: ClassVar[bool] = True

    def method_of(self, function: object) -> str | None:
        """Return the method of an AsyncFunction."""
        return self.method if isinstance(function, AsyncFunction) else None

    def output_type(self, *entering: Any) -> Any:
        """Return the result type of the coroutine; of an AsyncFunction, that of an element of its result."""
        returned = self.returned_type()
        if get_origin(returned) is Coroutine:
            returned = get_args(returned)[2]
        return element_type(returned) if isinstance(self.fn, AsyncFunction) else returned
