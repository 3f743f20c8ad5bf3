"""Calls that are made beside the task, in an event loop: what an operator sees of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Call", "CallCancelledError", "Calls", "Ended"]


class Call(NamedTuple):
    """A call to make.

    Attributes:
        token: what the operator knows the call by; one call at a time has it.
        function: called in the event loop; what it returns is awaited if it can be.
        argument: what it is called with.
    """

    token: Any
    function: Callable[[Any], Any]
    argument: Any


class CallCancelledError(Exception):
    """The call was cancelled, by :meth:`Calls.cancel` or by somebody else."""


class Ended(NamedTuple):
    """A call that has ended.

    Attributes:
        token: the call's.
        result: what it returned, if ``error`` is None.
        error: what it raised.
    """

    token: Any
    result: Any
    error: BaseException | None


class Calls(ABC):
    """The calls of one operator. From the task's thread only."""

    @abstractmethod
    def start(self, calls: Iterable[Call]) -> None:
        """Make calls, in this order, without waiting for them."""

    @abstractmethod
    def cancel(self, tokens: Iterable[Any]) -> None:
        """Cancel calls that have not ended; each of them ends soon after."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether calls have ended that were not taken."""

    @abstractmethod
    def take(self) -> list[Ended]:
        """The calls that have ended since the last time."""

    @abstractmethod
    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel every call, wait until they have ended, then call ``last`` and wait for it.

        Raises:
            TimeoutError: that takes too long.
            BaseException: what ``last`` raised.
        """
