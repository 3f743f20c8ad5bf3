"""Source over the iterable that a function returns."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeVar

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.connector.lib.timestamps import stamped
from sluiceway.errors import ConfigurationError, ConnectorError, FunctionContractError
from sluiceway.isolation import ATOMS, holders_in, isolated
from sluiceway.persisted import persisted
from sluiceway.util.instants import Instant
from sluiceway.util.overriding import override

__all__ = ["FunctionSource", "note_number"]

T = TypeVar("T")

# A slow iterator's records are not kept waiting for company longer than this.
_PATIENCE_S: Final = 0.002


@persisted("FunctionSplit")
@dataclass(frozen=True, slots=True)
class _Taken:
    """All of the iterable but its first ``count`` records."""

    count: int

    @property
    def split_id(self) -> str:
        return "all"


class FunctionSource(Source[T]):
    """The records of an iterable that a function returns: a generator function, or ``lambda: some_iterable``.

    One reader reads it, in order. The function is called in the task's thread, when the job runs, and its
    iterator is advanced there: one that blocks holds up everything else in its worker, and belongs into a
    :class:`~sluiceway.runtime.source.threaded_function.ThreadedFunctionSource`. An exception that it
    raises fails the job as it is. When the job ends early, a generator is closed (its ``finally`` blocks run).

    Its only position is a count. To restore one, the function is called anew and that many records are
    passed over: right only if it gives the same records again, slow if there are many.

    Args:
        function: takes nothing, returns an iterable.
        bounded: whether the iterable comes to an end.
        timestamp: gives the event time of a record in ms since the epoch, or as an aware datetime; None:
                records have none.
        output_type: type of the records, if it is to be checked along the graph.

    Raises:
        ConfigurationError: ``function`` cannot be called like that, or is an async one.
    """

    _runs_async: ClassVar[bool] = False

    def __init__(
        self,
        function: Callable[..., Iterable[T] | AsyncIterator[T]],
        *,
        bounded: bool = True,
        timestamp: Callable[[T], Instant] | None = None,
        output_type: Any = None,
    ) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"FunctionSource needs a function that returns an iterable, not {type(function).__name__}: "
                "pass the generator function itself, without calling it, or lambda: iterable"
            )
        is_async = inspect.isasyncgenfunction(function) and not self._runs_async
        if inspect.iscoroutinefunction(function) or is_async:
            raise ConfigurationError(
                f"FunctionSource cannot run {_name(function)}(), which is async: pass a plain function, or an "
                "async generator function to from_function()"
            )
        self._function = function
        self._bounded = bounded
        self._timestamp = timestamp
        self._type = output_type

    def __repr__(self) -> str:
        return f"FunctionSource({_name(self._function)})"

    @property
    @override
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.UNBOUNDED

    @property
    @override
    def output_type(self) -> Any:
        return self._type

    @property
    @override
    def max_readers(self) -> int | None:
        return 1

    @property
    def seekable(self) -> bool:
        """False: it starts from the beginning and skips the records before a position."""
        return False

    @property
    def gives_timestamps(self) -> bool:
        """True if a function for them was given."""
        return self._timestamp is not None

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Return an enumerator of one split."""
        return SimpleEnumerator(context, [_Taken(0)] if restored is None else restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[T]:
        return _FunctionReader(context, self._function, self._timestamp)


class _FunctionReader(SimpleReader[T]):
    def __init__(
        self,
        context: ReaderContext,
        function: Callable[..., Any],
        timestamp: Callable[[T], Instant] | None,
    ) -> None:
        super().__init__(context)
        self._function = function
        self._timestamp = timestamp
        self._split = _Taken(0)
        self._iterator: Iterator[T] | None = None
        # Places that refer to a record besides a local variable: a list of this reader's own.
        self._holders = 0
        self._to_skip = 0
        self._ended = False

    def open_split(self, split: _Taken) -> None:
        self._split = split
        self._to_skip = split.count
        self._ended = False

    def read(self, limit: int) -> Poll[T]:
        if self._ended:
            return END_OF_INPUT
        if self._iterator is None:
            self._iterator = self._call()
        if self._to_skip:
            passed_over = len(self._take(min(limit, self._to_skip)))
            self._to_skip -= passed_over
            if self._to_skip and self._is_at_end():
                raise ConnectorError(
                    f"{_name(self._function)}() ended after {self._split.count - self._to_skip} records; the "
                    f"position to restore is after record {self._split.count}. It must give the same each time"
                )
            return Wait(until=self.context.clock.monotonic())
        values = self._take(limit)
        if not values:
            return END_OF_INPUT
        result = stamped(values, self._timestamp)
        self._split = replace(self._split, count=self._split.count + len(values))
        return result

    def position(self) -> _Taken | None:
        return None if self._ended else self._split

    def close_split(self) -> None:
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if inspect.isgenerator(iterator) and close is not None:
            close()

    def _call(self) -> Iterator[T]:
        returned = self._function()
        self._holders = holders_in(returned)
        try:
            return iter(returned)
        except TypeError:
            raise FunctionContractError(
                f"{_name(self._function)}() must return an iterable of records; it returned {returned!r:.100} "
                f"({type(returned).__name__})"
            ) from None

    def _is_at_end(self) -> bool:
        return self._ended

    def _take(self, limit: int) -> list[T]:
        assert self._iterator is not None
        taken: list[T] = []
        now = self.context.clock.monotonic
        patience = now() + _PATIENCE_S
        try:
            for record in self._iterator:
                taken.append(record if type(record) in ATOMS else isolated(record, self._holders))
                if len(taken) >= limit or now() >= patience:
                    return taken
        except Exception as error:
            note_number(error, self._split.count - self._to_skip + len(taken) + 1, self._function)
            raise
        self._ended = True
        return taken


def note_number(error: BaseException, number: int, function: Callable[..., Any]) -> None:
    """Name the record at which a function has raised, so that it counts as the same one after a restart."""
    error.add_note(f"record: number {number} of {_name(function)}()")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
