"""Savepoints as whoever runs a job asks for them: from any thread, and answered whatever becomes of the job."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import RLock
from typing import TypeAlias

from sluiceway.config.options import OPTIONS, UnfitError
from sluiceway.errors import CheckpointFailedError, ConfigurationError

__all__ = ["SavepointRequests", "savepoint_place"]

Done: TypeAlias = Callable[[str, BaseException | None], None]
Send: TypeAlias = Callable[[str, bool, Done], None]


def savepoint_place(place: str | None, checkpoints: str | None) -> str:
    """Where a savepoint goes.

    Args:
        place: what was asked for.
        checkpoints: the place of the job's checkpoints, where nothing was asked for.

    Raises:
        ConfigurationError: there is neither, or it is not a path or URL.
    """
    if place is None:
        if checkpoints is None:
            raise ConfigurationError(
                "the job has no place for checkpoints: say in which directory the savepoint is to be"
            )
        return checkpoints
    option = OPTIONS["checkpoints"]
    try:
        found: str = option.parse(place)
    except UnfitError:
        raise ConfigurationError(f"{place!r} is not {option.expects}, in which a savepoint could be") from None
    return found


class SavepointRequests:
    """The savepoints of one job that were asked for and are not answered. From any thread, and signal handlers."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may interrupt whoever holds it.
        self._lock = RLock()
        self._unanswered: dict[int, Done] = {}
        self._numbers = count()
        self._early: list[tuple[str, bool, Done]] = []
        self._send: Send | None = None
        self._over = False

    def ask(self, place: str, stop: bool, done: Done) -> None:
        """Ask for one: now, or when the job has begun. ``done`` is called once, whatever becomes of the job."""
        number = next(self._numbers)

        def answer(location: str, problem: BaseException | None) -> None:
            with self._lock:
                wanted = self._unanswered.pop(number, None)
            if wanted is not None:
                wanted(location, problem)

        with self._lock:
            over, send = self._over, self._send
            if not over:
                self._unanswered[number] = done
            if not over and send is None:
                self._early.append((place, stop, answer))
        if over:
            done("", _ended())
        elif send is not None:
            send(place, stop, answer)

    def begin(self, send: Send) -> None:
        """The job has begun.

        Args:
            send: asks the job master, and gives it what it has to call then.
        """
        with self._lock:
            self._send = send
            early, self._early = self._early, []
        for place, stop, answer in early:
            send(place, stop, answer)

    def close(self) -> None:
        """The job has ended: there is nobody to answer any more. Harmless twice."""
        with self._lock:
            self._over = True
            left, self._unanswered = self._unanswered, {}
        for done in left.values():
            done("", _ended())


def _ended() -> CheckpointFailedError:
    return CheckpointFailedError("the job has ended")
