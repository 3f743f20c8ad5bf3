"""Discovery: base classes of enumerators that search for splits at the start, and while the job runs."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sluiceway.config.options import duration_ms
from sluiceway.connector.sources import Enumerator, EnumeratorContext, SimpleEnumerator
from sluiceway.errors import ConfigurationError, ConnectorError, RejectedRecordError
from sluiceway.util.overriding import override

__all__ = ["DiscoveringEnumerator", "SearchingEnumerator", "watch_interval_ms"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Future(Protocol[T_co]):
    """The methods of :class:`concurrent.futures.Future` that are used: connectors create the threads."""

    def done(self) -> bool: ...

    def result(self) -> T_co: ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None: ...


class _Executor(Protocol):
    """The methods of :class:`concurrent.futures.Executor` that are used."""

    def submit(self, fn: Callable[[], T], /) -> _Future[T]: ...

    def shutdown(self) -> None: ...


class SearchingEnumerator(SimpleEnumerator):
    """Enumerator of splits that one search finds, which may block, when the job starts.

    Args:
        context: given by the runtime.
        find: returns the splits, given the number of readers; called in any thread.
        restored: the splits that an earlier enumerator has kept; None: they are to be found.
    """

    def __init__(
        self, context: EnumeratorContext, find: Callable[[int], Sequence[Any]], restored: Iterable[Any] | None
    ) -> None:
        super().__init__(context, restored or ())
        self._find = find
        self._is_new = restored is None

    def start(self) -> None:
        """Make the search in the calling thread."""
        if (search := self.first_search()) is not None:
            search()()

    @override
    def first_search(self) -> Callable[[], Callable[[], None]] | None:
        def search() -> Callable[[], None]:
            return partial(self._pending.extend, self._find(self._context.parallelism))

        return search if self._is_new else None


class DiscoveringEnumerator(Enumerator, Generic[T]):
    """Enumerator that searches when it starts, and then at an interval, in another thread.

    An error of the first search fails the job. A transient error of a later one is logged once, and the next
    search tries again; other errors, among them RejectedRecordError, and all errors of :meth:`_take` fail the job.

    Args:
        context: given by the runtime.
        interval_ms: time from the end of a search to the next one; None: only the first search is made.
        create_thread: creates the executor of later searches, which the enumerator shuts down.
        log: logger of transient errors.
        sought: plural noun for messages: ``files``.
    """

    _transient: ClassVar[tuple[type[Exception], ...]] = (ConnectorError,)

    def __init__(
        self,
        context: EnumeratorContext,
        interval_ms: int | None,
        *,
        create_thread: Callable[[], _Executor],
        log: logging.Logger,
        sought: str,
    ) -> None:
        self._context = context
        self._interval_ms = interval_ms
        self._create_thread = create_thread
        self._log = log
        self._sought = sought
        self._next_search = 0.0
        self._under_way: _Future[T] | None = None
        self._thread: _Executor | None = None
        self._logged = ""

    @abstractmethod
    def _search(self) -> T:
        """Return the result of a search. May block; called in any thread, and changes no field."""

    @abstractmethod
    def _take(self, found: T) -> None:
        """Add the result of a search to the state. Called in the enumerator's thread."""

    @abstractmethod
    def _hand_out(self) -> None:
        """Assign pending splits to readers."""

    def first_search(self) -> Callable[[], Callable[[], None]] | None:
        """Return the first search; None: none is to be made."""

        def search() -> Callable[[], None]:
            return partial(self._take_first, self._search())

        return search

    def _take_first(self, found: T) -> None:
        self._take(found)
        self._schedule()

    def start(self) -> None:
        """Make the first search in the calling thread."""
        if (search := self.first_search()) is not None:
            search()()

    def run(self) -> None:
        """Begin a search if it is due, or hand out the result of one that has finished."""
        if self._under_way is None:
            left_s = self._next_search - self._context.clock.monotonic()
            if left_s > 0:
                self._context.wake(left_s)
                return
            if self._thread is None:
                self._thread = self._create_thread()
            self._under_way = self._thread.submit(self._search)
            # The result is taken in the enumerator's thread, which run() is called in.
            self._under_way.add_done_callback(lambda done: self._context.wake())
        elif self._under_way.done():
            done, self._under_way = self._under_way, None
            try:
                found = done.result()
            except RejectedRecordError:
                raise  # what was found will not be read the next time either
            except self._transient as error:
                if str(error) != self._logged:
                    self._logged = str(error)
                    self._log.warning(
                        "%s; looking for %s again every %d ms", error, self._sought, self._interval_ms
                    )
            else:
                self._logged = ""
                self._take(found)
                self._hand_out()
            self._schedule()

    def close(self) -> None:
        """Wait for a search that is under way, and end its thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    def _schedule(self) -> None:
        if self._interval_ms is not None:
            self._next_search = self._context.clock.monotonic() + self._interval_ms / 1000
            self._context.wake(self._interval_ms / 1000)


def watch_interval_ms(watch: timedelta | int | str | None) -> int | None:
    """Return the argument ``watch=`` of a source in ms; None: the source does not search again.

    Args:
        watch: a timedelta, ms, or a text such as ``10s``.

    Raises:
        ConfigurationError: it is no duration, or less than a millisecond.
    """
    if watch is None:
        return None
    try:
        ms = duration_ms(watch)
    except ValueError as error:
        raise ConfigurationError(f"watch={watch!r}: {error}") from None
    if ms < 1:
        raise ConfigurationError(f"watch={watch!r} must be at least 1 ms, or None")
    return ms
