"""Contract of calls that an event loop makes beside the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

__all__ = ["Call", "CallCancelledError", "Calls", "Ended"]


class Call(NamedTuple):
    """Call to make.

    Attributes:
        token: identifies the call; one call at a time has it.
        function: called in the event loop; what it returns is awaited if it is awaitable.
        argument: argument of the call.
        keep: called with what the call has returned, in the event loop and before any other code of the user runs
            there; its result, or what it raises, is taken as that of the call. None keeps the result as it is.
    """

    token: Any
    function: Callable[[Any], Any]
    argument: Any
    keep: Callable[[Any], Any] | None = None


class CallCancelledError(Exception):
    """The call was cancelled, by :meth:`Calls.cancel` or by other code."""


class Ended(NamedTuple):
    """Call that has ended.

    Attributes:
        token: identifies the call.
        result: what it returned, if ``error`` is None.
        error: what it raised.
    """

    token: Any
    result: Any
    error: BaseException | None


class Calls(ABC):
    """Calls of one operator. From the task's thread only."""

    @abstractmethod
    def start(self, calls: Iterable[Call]) -> None:
        """Make calls, in this order, without waiting for them."""

    @abstractmethod
    def cancel(self, tokens: Iterable[Any]) -> None:
        """Cancel calls that have not ended; each of them ends soon after."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True if calls have ended that were not taken."""

    @abstractmethod
    def take(self) -> list[Ended]:
        """Return the calls that have ended since the last time."""

    @abstractmethod
    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel every call, wait until they have ended, then call ``last`` and wait for it.

        Raises:
            TimeoutError: that takes too long.
            BaseException: what ``last`` raised.
        """
