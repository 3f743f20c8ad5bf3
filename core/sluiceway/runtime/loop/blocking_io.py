"""Blocking calls beside a loop: executed by a helper thread, completed by a mail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

from sluiceway.runtime.failures.explanation import contained
from sluiceway.runtime.loop.short_turns import short_turns
from sluiceway.util.overriding import override

__all__ = ["Background", "HelperThread", "Inline"]

T = TypeVar("T")
_Done = Callable[[Any, BaseException | None], None]

_TURN_S: Final = 0.000_5
"""Time that a busy thread keeps the interpreter from one that works beside it. By default it is 5 ms, and who
writes files waits as long after every call: a small checkpoint beside a busy loop then took 0.3 s."""


class Background(ABC):
    """Executor of blocking calls, one after the other. :meth:`run` from the loop's thread."""

    @abstractmethod
    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        """Do ``work``, then call ``done`` in the loop's thread.

        Args:
            work: may block.
            done: called with the result and None, or with None and the exception.
        """

    def close(self) -> None:
        """Run everything queued, and end."""


class HelperThread(Background):
    """Executor with a thread, which starts with the first call.

    Args:
        mail: calls an action in the loop's thread.
        name: of the thread.
    """

    def __init__(self, mail: Callable[[Callable[[], None]], None], name: str = "sluiceway-helper") -> None:
        self._mail = mail
        self._name = name
        self._work: SimpleQueue[tuple[Callable[[], Any], _Done] | None] = SimpleQueue()
        self._thread: Thread | None = None

    @override
    def run(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._work.put((work, done))

    def close(self) -> None:
        """Wait for the thread. Harmless twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _serve(self) -> None:
        while (piece := self._work.get()) is not None:
            work, done = piece
            with short_turns(_TURN_S):
                # Never raises, so that one failed call does not end the thread for the later ones.
                outcome = _outcome(work, done)
            self._mail(outcome)
            del piece, work, done, outcome  # the call may hold large objects, and the next one may come late


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
