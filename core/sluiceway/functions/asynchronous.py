"""Functions that wait for external systems without blocking the records behind, and their retries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from sluiceway.config.options import duration_ms
from sluiceway.functions.base import FunctionObject, RuntimeContext

__all__ = ["AsyncFunction", "AsyncRetryStrategy"]

IN = TypeVar("IN")
OUT = TypeVar("OUT")

IfException: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], object] | None
)


class AsyncFunction(FunctionObject, ABC, Generic[IN, OUT]):
    """Coroutine function that returns any number of records for each record; many calls run at a time.

    All methods are called in the event loop of the worker, which has a thread of its own: what :meth:`open`
    creates (a client session, a pool of connections) works in the others, and none of them may block.

    Call order: :meth:`open` once per subtask, awaited before the first record; :meth:`async_invoke` and
    :meth:`timeout`; :meth:`close` once if :meth:`open` was called, also after failure and cancel, when every
    coroutine has ended or was cancelled.
    """

    async def open(self, context: RuntimeContext) -> None:
        """Prepare. ``context`` has no keyed state."""

    @abstractmethod
    async def async_invoke(self, value: IN) -> Iterable[OUT] | None:
        """Return the results for ``value``, as a list or another iterable, or None.

        It is cancelled at its timeout and when the job ends early. After a restart from a snapshot it is
        called again for the records that were under way.
        """

    def timeout(self, value: IN) -> Iterable[OUT] | None:
        """Return the results for a ``value`` that has timed out. Unless overridden, that fails the job.

        Raises:
            TimeoutError: always.
        """
        raise TimeoutError(
            f"{type(self).__name__}.async_invoke() has given no result in time: allow it more with timeout=, or "
            "define timeout(value) to return other results"
        )

    async def close(self) -> None:
        """Clean up."""


class AsyncRetryStrategy(ABC):
    """Decision of whether and when a failed call, or one with a useless result, is repeated.

    The timeout of the step covers all attempts for a record. :meth:`fixed_delay` and
    :meth:`exponential_backoff` make the usual strategies; subclass it for others. All calls come from the
    task's thread.
    """

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether another attempt may follow ``current_attempts`` of them (1 or more)."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the time before the next attempt, in ms."""

    def retry_on_result(self, result: Any) -> bool:
        """Return whether ``result`` needs another attempt: the function's result, of an AsyncFunction a list."""
        return False

    def retry_on_exception(self, error: BaseException) -> bool:
        """Return whether ``error`` needs another attempt."""
        return True

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        delay: timedelta | int | str,
        *,
        if_result: Callable[[Any], object] | None = None,
        if_exception: IfException = Exception,
    ) -> AsyncRetryStrategy:
        """Return a strategy with the same delay before every further attempt.

        Args:
            max_attempts: number of attempts after the first one.
            delay: a timedelta, ms, or a text (``"100ms"``).
            if_result: returns for the function's result (of an AsyncFunction: a list; for ``lookup_async()`` what
                it returned) whether to try again.
            if_exception: exceptions after which to try again: a class, a tuple of classes, or a function of
                the exception; None: none.

        Raises:
            ValueError: a number that is too small, or no duration.
            TypeError: a predicate that cannot be called.
        """
        ms = _delay("delay", delay)
        return _Backoff(max_attempts, ms, ms, 1.0, if_result, if_exception)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: timedelta | int | str,
        max_retry_delay: timedelta | int | str,
        multiplier: float = 2.0,
        *,
        if_result: Callable[[Any], object] | None = None,
        if_exception: IfException = Exception,
    ) -> AsyncRetryStrategy:
        """Return a strategy of growing delays: ``initial_delay``, that times ``multiplier``, and so on.

        Args:
            max_attempts: number of attempts after the first one.
            initial_delay: before the second attempt: a timedelta, ms, or a text.
            max_retry_delay: upper limit of the delay.
            multiplier: at least 1.
            if_result: as for :meth:`fixed_delay`.
            if_exception: as for :meth:`fixed_delay`.

        Raises:
            ValueError: a number that is too small, or no duration.
            TypeError: a predicate that cannot be called.
        """
        first, most = _delay("initial_delay", initial_delay), _delay("max_retry_delay", max_retry_delay)
        if most < first:
            raise ValueError(f"max_retry_delay ({most} ms) must not be less than initial_delay ({first} ms)")
        if multiplier < 1:
            raise ValueError(f"multiplier must be at least 1, not {multiplier!r}")
        return _Backoff(max_attempts, first, most, multiplier, if_result, if_exception)


class _Backoff(AsyncRetryStrategy):
    def __init__(
        self,
        max_attempts: int,
        first_ms: int,
        most_ms: int,
        multiplier: float,
        if_result: Callable[[Any], object] | None,
        if_exception: IfException,
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
            raise ValueError(f"max_attempts must be a whole number of at least 1, not {max_attempts!r}")
        for name, given in (("if_result", if_result), ("if_exception", if_exception)):
            if given is not None and not callable(given) and not isinstance(given, tuple):
                raise TypeError(f"{name} takes a function, not {given!r} ({type(given).__name__})")
        self._max_attempts = max_attempts
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._multiplier = multiplier
        self._if_result = if_result
        self._if_exception = if_exception

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        # Step by step: a power of the multiplier would overflow after many attempts.
        delay = float(self._first_ms)
        for _ in range(current_attempts - 1):
            delay *= self._multiplier
            if delay >= self._most_ms:
                return self._most_ms
        return int(delay)

    def retry_on_result(self, result: Any) -> bool:
        return self._if_result is not None and bool(self._if_result(result))

    def retry_on_exception(self, error: BaseException) -> bool:
        wanted = self._if_exception
        if wanted is None:
            return False
        if isinstance(wanted, type | tuple):
            return isinstance(error, wanted)
        return bool(wanted(error))

    def __repr__(self) -> str:
        if self._multiplier == 1:
            return f"fixed_delay({self._max_attempts}, {self._first_ms})"
        return f"exponential_backoff({self._max_attempts}, {self._first_ms}, {self._most_ms}, {self._multiplier})"


def _delay(what: str, given: timedelta | int | str) -> int:
    try:
        ms = duration_ms(given)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if ms < 1:
        raise ValueError(f"{what} must be at least 1 ms, not {given!r}")
    return ms
