"""Requests to a job from any thread: kept until the job has started, and answered whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from threading import RLock
from typing import Generic, TypeVar

from sluiceway.errors import CheckpointFailedError

__all__ = ["JobRequests"]

M = TypeVar("M")
T = TypeVar("T")


class JobRequests(Generic[M]):
    """Requests to one job that waits for its start, and those that it has not answered yet.

    ``M`` is the type of the job's master, which takes them. Methods may be called from any thread, and from signal
    handlers.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may interrupt the holder.
        self._lock = RLock()
        self._unanswered: dict[int, Callable[[], None]] = {}
        self._numbers = count()
        self._early: list[Callable[[M], None]] = []
        self._master: M | None = None
        self._mail: Callable[[Callable[[], None]], None] | None = None
        self._over = False

    def ask(
        self,
        send: Callable[[M, Callable[[T, BaseException | None], None]], None],
        done: Callable[[T, BaseException | None], None],
        nothing: T,
    ) -> None:
        """Send a request now, or once the job has started.

        Args:
            send: called in the job master's thread, with the callback for the answer.
            done: called once, whatever happens to the job, with the answer or the error.
            nothing: answer that accompanies an error.
        """
        number = next(self._numbers)

        def answer(result: T, problem: BaseException | None) -> None:
            with self._lock:
                # Whoever removes the entry calls `done`: an answer and the end of the job may come at the same
                # time. It is called without the lock, as it is code of others.
                waits = self._unanswered.pop(number, None) is not None
            if waits:
                done(result, problem)

        def ask(master: M) -> None:
            send(master, answer)

        with self._lock:
            over, master, mail = self._over, self._master, self._mail
            if not over:
                self._unanswered[number] = lambda: done(nothing, _ended())
            if not over and master is None:
                self._early.append(ask)
        if over:
            done(nothing, _ended())
        elif master is not None and mail is not None:
            mail(lambda: ask(master))

    def tell(self, send: Callable[[M], None]) -> None:
        """Send a request that has no answer now, or once the job has started; drop it if the job has ended.

        Args:
            send: called in the job master's thread.
        """
        with self._lock:
            over, master, mail = self._over, self._master, self._mail
            if not over and master is None:
                self._early.append(send)
        if not over and master is not None and mail is not None:
            mail(partial(send, master))

    def begin(self, master: M, mail: Callable[[Callable[[], None]], None]) -> None:
        """Send the requests that have waited for the start of the job.

        Args:
            master: of the job.
            mail: calls an action in the thread of the job master.
        """
        with self._lock:
            self._master, self._mail = master, mail
            early, self._early = self._early, []
        for ask in early:
            mail(partial(ask, master))

    def close(self) -> None:
        """Answer all requests with an error: the job has ended. Harmless twice."""
        with self._lock:
            self._over = True
            left, self._unanswered = self._unanswered, {}
        for refuse in left.values():
            refuse()


def _ended() -> CheckpointFailedError:
    return CheckpointFailedError("the job has ended")
