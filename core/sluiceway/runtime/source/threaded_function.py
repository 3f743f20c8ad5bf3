"""Source over a function that blocks, or that is an async generator, in a separate thread per reader."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, SimpleReader, Wait
from sluiceway.connector.lib import FunctionSource
from sluiceway.connector.lib.function import _name, _Taken, note_number
from sluiceway.connector.lib.timestamps import stamped
from sluiceway.errors import ConnectorError, FunctionContractError
from sluiceway.isolation import ATOMS, holders_in, isolated
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.util.instants import Instant

__all__ = ["ThreadedFunctionSource"]

T = TypeVar("T")

_MOST_WAITING: Final = 2048
"""Largest number of records that the function may be ahead of the task."""
_ROOM_AT: Final = 1024
"""Queue length at which the function resumes: waking a thread for each record costs more than the record."""
_GRACE_S: Final = 5.0
"""Seconds that a function may run after the request to stop, before its thread is abandoned."""


class ThreadedFunctionSource(FunctionSource[T]):
    """Source of the records of a function that may block, or of an async generator function.

    The function runs in a thread of its own, an async generator in an asyncio event loop there, up to 2048 records
    ahead of the task; then it waits until the task has taken some. Other tasks of the worker go on whatever it
    does. An exception that it raises fails the job when the records before it were taken.

    When the job ends early, an async generator is cancelled where it awaits. A plain function that takes an
    argument is given a ``threading.Event``, which is set then; a generator is closed at its next ``yield``. What
    has not ended after 5 s is logged, and its thread is left to end by itself.

    Positions are those of :class:`FunctionSource`: a count of the records that the task has taken.
    """

    _runs_async: ClassVar[bool] = True

    def create_reader(self, context: ReaderContext) -> Reader[T]:
        """Create the reader, whose thread starts with the split."""
        return _ThreadedReader(context, self._function, self._timestamp)


class _ThreadedReader(SimpleReader[T]):
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
        self._producer: _Producer[T] | None = None
        self._ended = False

    def open_split(self, split: _Taken) -> None:
        self._split = split
        self._ended = False
        self._producer = _Producer(self._function, split.count, self.context.wake)

    def read(self, limit: int) -> Poll[T]:
        producer = self._producer
        assert producer is not None
        while True:
            # Before the records: one that is added in between is found by the next call.
            has_ended = producer.ended
            values = producer.take(limit)
            if values:
                result = stamped(values, self._timestamp)
                self._split = replace(self._split, count=self._split.count + len(values))
                return result
            if has_ended:
                if producer.error is not None:
                    raise producer.error
                self._ended = True
                return END_OF_INPUT
            if producer.waits_for():
                return Wait()

    def position(self) -> _Taken | None:
        return None if self._ended else self._split

    def close_split(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stop()


class _Producer(Generic[T]):
    """Producer that calls a function in a thread, and queues its records.

    Args:
        function: the function.
        to_skip: number of records to skip.
        wake: called from the thread when there is something after :meth:`waits_for` has returned True.

    Attributes:
        ended: whether nothing will be added any more.
        error: what the function has raised; once it has ended.
    """

    def __init__(self, function: Callable[..., Any], to_skip: int, wake: Callable[[], None]) -> None:
        self.ended = False
        self.error: BaseException | None = None
        self._function = function
        self._to_skip = self._first = to_skip
        self._produced = 0
        # Places that refer to a record besides an argument: the loop's variable, and a list of this producer's.
        self._holders = 1
        self._wake = wake
        self._records: deque[T] = deque()
        self._awaited = False
        self._stopped = threading.Event()
        self._full = False
        self._room = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room_in_loop: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        # A daemon: a function that blocks must not keep the program from ending. Its log lines are those of the
        # task in whose thread this is called.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"sluiceway-source-{_name(function)}", daemon=True
        )
        self._thread.start()

    # ---- in the task's thread --------------------------------------------------------------------------------

    def take(self, limit: int) -> list[T]:
        """Return the next records; an empty list if there are none now."""
        records = self._records
        taken = [records.popleft() for _ in range(min(limit, len(records)))]
        if self._full and len(records) <= _ROOM_AT:
            self._make_room()
        return taken

    def waits_for(self) -> bool:
        """Request a wake-up for the next record; return False if there is one already."""
        # Set before the check, while the other thread appends before it looks: one of the two sees the other's
        # change.
        self._awaited = True
        if self._records or self.ended:
            self._awaited = False
        return self._awaited

    def stop(self) -> None:
        """Stop the function, and wait for its end, for a time."""
        self._stopped.set()
        # The function may be waiting for room.
        self._make_room()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the loop is closed: the function has ended
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            log(
                WARNING,
                "jobs",
                f"{_name(self._function)}() has not ended within {_GRACE_S:g} s of the end of its task, and its "
                "thread is left to itself: have it take an argument, a threading.Event that is set then, and look "
                "at that, or make it an async generator function",
            )

    def _make_room(self) -> None:
        self._full = False
        with self._room:
            self._room.notify()
        loop, room = self._loop, self._room_in_loop
        if loop is not None and room is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(room.set)

    # ---- in the function's thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if inspect.isasyncgenfunction(self._function):
                with asyncio.Runner() as runner:
                    runner.run(self._produce_in_loop(self._function()))
            else:
                self._produce()
        except BaseException as error:
            # An exception that follows the request to stop is no failure.
            if not self._stopped.is_set():
                self.error = error
                if isinstance(error, Exception):
                    note_number(error, self._produced + 1, self._function)
        # Set before the wake-up, and after the error that it announces.
        self.ended = True
        self._tell()

    def _produce(self) -> None:
        returned = self._function(self._stopped) if takes_event(self._function) else self._function()
        self._holders += holders_in(returned)
        try:
            iterator = iter(returned)
        except TypeError:
            raise FunctionContractError(
                f"{_name(self._function)}() must return an iterable of records; it returned {returned!r:.100} "
                f"({type(returned).__name__})"
            ) from None
        try:
            for record in iterator:
                if self._stopped.is_set():
                    return
                if self._put(record):
                    # Checked under the lock, so that a notification cannot come between the check and the wait.
                    with self._room:
                        self._full = True
                        while len(self._records) > _ROOM_AT and not self._stopped.is_set():
                            self._room.wait()
                            # Again, and before the check: a take() that saw an earlier one may clear it only now.
                            self._full = True
            self._check_skipped()
        finally:
            if inspect.isgenerator(iterator):
                iterator.close()

    async def _produce_in_loop(self, generator: AsyncIterator[T]) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        room = self._room_in_loop = asyncio.Event()
        if self._stopped.is_set():  # stopped before the asyncio task could be cancelled
            return
        try:
            async for record in generator:
                if self._stopped.is_set():
                    return
                if self._put(record):
                    room.clear()
                    self._full = True
                    if len(self._records) > _ROOM_AT and not self._stopped.is_set():
                        await room.wait()
            self._check_skipped()
        finally:
            await generator.aclose()  # type: ignore[attr-defined]

    def _put(self, record: T) -> bool:
        """Add a record; return whether the queue is full."""
        self._produced += 1
        if self._to_skip:
            self._to_skip -= 1
            return False
        self._records.append(record if type(record) in ATOMS else isolated(record, self._holders))
        if self._awaited:
            self._tell()
        return len(self._records) >= _MOST_WAITING

    def _tell(self) -> None:
        if self._awaited and not self._stopped.is_set():
            self._awaited = False
            self._wake()

    def _check_skipped(self) -> None:
        if self._to_skip:
            raise ConnectorError(
                f"{_name(self._function)}() ended after {self._first - self._to_skip} records; the position to "
                f"restore is after record {self._first}. It must give the same each time"
            )


def takes_event(function: Callable[..., Any]) -> bool:
    """Return whether a function requires an argument, and so receives the event."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a built-in without a signature
        return False
    return False
