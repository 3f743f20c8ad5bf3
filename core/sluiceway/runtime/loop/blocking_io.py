"""Blocking calls beside a loop: executed by a helper thread, completed by a mail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final, TypeVar

from sluiceway.runtime.failures.explanation import contained
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.short_turns import short_turns
from sluiceway.util.overriding import override

__all__ = ["CLOSE_S", "SEARCH_CLOSE_S", "Background", "Backgrounds", "HelperThread", "Inline"]

T = TypeVar("T")
_Done = Callable[[Any, BaseException | None], None]

_TURN_S: Final = 0.000_5
"""Time that a busy thread keeps the interpreter from one that works beside it. By default it is 5 ms, and who
writes files waits as long after every call: a small checkpoint beside a busy loop then took 0.3 s."""
CLOSE_S: Final = 30.0
"""Seconds that calls which are under way have at the end of a process or a job. A storage that does not answer
keeps nobody for longer."""
SEARCH_CLOSE_S: Final = 5.0
"""The same for searches of sources at the end of a job in one process, where nothing is lost with them."""
_STORAGE_ABANDONED: Final = "its storage has not answered: files of checkpoints may be left there"
_SEARCH_ABANDONED: Final = "what a source searches has not answered: the search is abandoned"
_IDLE_S: Final = 30.0
"""Seconds after which a thread without calls ends."""


class Background(ABC):
    """Executor of blocking calls, one after the other. :meth:`run` from the loop's thread."""

    @abstractmethod
    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Do ``work``, then call ``done`` in the loop's thread.

        Args:
            work: may block.
            done: called with the result and None, or with None and the exception.
        """

    @property
    def busy(self) -> bool:
        """True while any call has not returned."""
        return False

    def retire(self) -> None:
        """End after the calls that were made, without waiting for them."""

    def close(self, job: str, within_s: float | None = None, *, searches: bool = False) -> None:
        """Wait for all calls, and log a warning if one has not returned.

        Args:
            job: the job that they are for.
            within_s: seconds to wait at the most; None: until the last call has returned.
            searches: whether they are searches of its sources, and not calls of its storage.
        """


class HelperThread(Background):
    """Executor with a thread, which starts with a call and ends when none has come for a while.

    Args:
        mail: calls an action in the loop's thread.
        name: of the thread.
    """

    def __init__(self, mail: Callable[[Callable[[], None]], None], name: str = "sluiceway-helper") -> None:
        self._mail = mail
        self._name = name
        self._changed = Condition()
        self._calls: deque[tuple[Callable[[], Any], _Done]] = deque()
        self._closing = False
        self._thread: Thread | None = None

    @override
    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        with self._changed:
            self._calls.append((work, done))
            if self._thread is None:
                thread = Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                # Not before: Ctrl-C may interrupt start(), and a thread that has not started cannot be joined.
                self._thread = thread
            self._changed.notify()

    @property
    @override
    def busy(self) -> bool:
        return self._thread is not None and bool(self._calls)

    @override
    def retire(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    @override
    def close(self, job: str, within_s: float | None = None, *, searches: bool = False) -> None:
        """Wait for the thread. Harmless twice."""
        thread = self._thread
        self.retire()
        if thread is not None:
            thread.join(within_s)
        if self.busy:
            log(WARNING, "jobs", _SEARCH_ABANDONED if searches else _STORAGE_ABANDONED, job=job)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            work, done = call
            with short_turns(_TURN_S):
                # Never raises, so that one failed call does not end the thread for the later ones.
                outcome = _outcome(work, done)
            self._mail(outcome)
            # The call may hold large objects, and the next one may come late.
            del call, work, done, outcome
            self._calls.popleft()

    def _next(self) -> tuple[Callable[[], Any], _Done] | None:
        """Return the next call, which counts as under way until it is removed; None: the thread ends."""
        with self._changed:
            if not self._calls and not self._closing:
                self._changed.wait(_IDLE_S)
            if not self._calls:
                self._thread = None
                return None
            return self._calls[0]


class Backgrounds:
    """Executors of the jobs of a process: calls of one job do not wait for those of another. Loop's thread.

    Args:
        make: creates an executor.
    """

    def __init__(self, make: Callable[[], Background]) -> None:
        self._make = make
        self._of: dict[tuple[Hashable, bool], Background] = {}
        self._dropped: list[tuple[tuple[Hashable, bool], Background]] = []

    def of(self, owner: Hashable, *, searches: bool = False) -> Background:
        """Return the executor of a job, or of anything else whose calls belong together.

        Args:
            owner: the job.
            searches: return that of searches of its sources, which must not delay its checkpoints.
        """
        if (owner, searches) not in self._of:
            self._of[owner, searches] = self._make()
        return self._of[owner, searches]

    def drop(self, owner: Hashable) -> None:
        """Forget the executors of a job; calls that were made are still carried out."""
        self._dropped = [(which, each) for which, each in self._dropped if each.busy]
        for which in ((owner, False), (owner, True)):
            if (background := self._of.pop(which, None)) is not None:
                background.retire()
                self._dropped.append((which, background))

    def retire(self) -> None:
        """Forget all executors; calls that were made are still carried out."""
        for owner, _ in list(self._of):
            self.drop(owner)

    def close(self, within_s: float | None = None) -> None:
        """Close all executors, within so many seconds together; see :meth:`Background.close`."""
        end = None if within_s is None else monotonic() + within_s
        for (owner, searches), background in [*self._of.items(), *self._dropped]:
            left_s = None if end is None else max(0.0, end - monotonic())
            background.close(str(owner), left_s, searches=searches)


class Inline(Background):
    """Executor that runs calls at once, for loops in which nothing blocks.

    Args:
        soon: calls an action in the loop's thread, after earlier ones.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self._soon = soon

    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Run the call now, and report its end soon."""
        self._soon(_outcome(work, done))


def _outcome(work: Callable[[], Any], done: _Done) -> Callable[[], None]:
    try:
        result = work()
    except BaseException as error:  # the waiting caller must learn of it: a thread that ends reports nothing
        problem = contained(error, "work in a helper thread")
        return lambda: done(None, problem)
    return lambda: done(result, None)
