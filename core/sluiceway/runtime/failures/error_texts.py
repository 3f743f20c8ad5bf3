"""Bounded texts of users' exceptions, whatever their ``__str__``, ``__repr__`` and ``__reduce__`` do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread
from typing import Final, TypeVar

from sluiceway.errors import SluicewayError
from sluiceway.runtime.failures.users_frames import UsersFrames
from sluiceway.util.redaction import redact_urls

__all__ = [
    "LIMIT_S",
    "WorkerError",
    "cut",
    "describe",
    "format_error",
    "frames_of",
    "is_too_slow",
    "users_traceback",
    "within",
]

T = TypeVar("T")


class WorkerError(SluicewayError):
    """Replacement of an exception of a worker that could not be sent as it was."""


LIMIT_S: Final = 3.0
"""Time that a method of an exception gets, far below the time without heartbeats that costs a worker."""

_TOO_SLOW: Final = f"it takes more than {LIMIT_S:g} s)"
_LONGEST_LINE: Final = 10_000
_LONGEST_TEXT: Final = 100_000


def within(seconds: float, work: Callable[[], T], otherwise: Callable[[BaseException | None], T]) -> T:
    """Return what ``work`` returns, or what ``otherwise`` makes of its failure.

    ``work`` runs in a thread of its own, because Python cannot interrupt a function that hangs. A thread that
    has not ended in time is left behind; it is a daemon.

    Args:
        seconds: how long to wait.
        work: may raise anything, ``SystemExit`` included, or never return.
        otherwise: given what was raised, or None if ``work`` has not ended in time.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, name="sluiceway-error-text", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):  # no thread can be started
        run()
    else:
        thread.join(seconds)
    if results:
        return results[0]
    return otherwise(raised[0] if raised else None)


def describe(error: BaseException, limit: int = 2_000) -> str:
    """Return the exception's class and text, bounded, in place of ``f"{type(error).__name__}: {error}"``."""
    name = type(error).__qualname__

    def work() -> str:
        text = str(error)
        if len(text) > limit:
            text = f"{text[:limit]}... ({len(text):,} characters)"
        text = redact_urls(text)
        return f"{name}: {text}" if text else name

    def otherwise(why: BaseException | None) -> str:
        reason = _TOO_SLOW if why is None else f"its __str__ raised {type(why).__qualname__})"
        return f"{name} (its text cannot be shown: {reason}"

    return within(LIMIT_S, work, otherwise)


def is_too_slow(described: str) -> bool:
    """Return whether :func:`describe` has timed out; then other methods of the exception are not tried."""
    return described.endswith(_TOO_SLOW)


def format_error(error: BaseException, described: str | None = None) -> str:
    """Return the traceback as Python writes it, with causes, contexts and notes, bounded by :func:`cut`.

    Args:
        error: it.
        described: what :func:`describe` has returned for it, where that is known.
    """

    def work() -> str:
        from traceback import format_exception

        return cut("".join(format_exception(error)).splitlines())

    def otherwise(why: BaseException | None) -> str:
        return frames_of(error, describe(error) if described is None else described)

    if described is not None and is_too_slow(described):
        return frames_of(error, described)
    return within(LIMIT_S, work, otherwise)


def frames_of(error: BaseException, described: str) -> str:
    """Return the traceback of an exception, and no other, without calling any method of it."""
    from traceback import format_tb

    notes = getattr(error, "__notes__", ())
    texts = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    frames = "".join(format_tb(error.__traceback__)).splitlines()
    return cut(["Traceback (most recent call last):", *frames, described, *texts])


def users_traceback(error: BaseException) -> str:
    """Return :func:`format_error`, or what it was in a worker, without the frames of this package."""
    remote = getattr(error.__cause__, "remote_traceback", None)
    text = remote if isinstance(remote, str) else format_error(error)
    return "\n".join(UsersFrames().of_lines(text.splitlines()))


def cut(lines: Iterable[str]) -> str:
    """Join lines without passwords of URLs, 10,000 characters of each, without the middle of more than 100,000."""
    kept = [redact_urls(_cut_line(line)) for line in lines]
    if sum(map(len, kept)) + len(kept) <= _LONGEST_TEXT:
        return "\n".join(kept)
    # The end says what was raised, in which step, with which record; the beginning where it began.
    head = _first(kept, _LONGEST_TEXT // 2)
    tail = _first(kept[:head:-1], _LONGEST_TEXT // 2)
    left_out = len(kept) - head - tail
    if left_out <= 0:
        return "\n".join(kept)
    return "\n".join([*kept[:head], f"... ({left_out:,} lines are left out)", *kept[len(kept) - tail :]])


def _first(lines: list[str], limit: int) -> int:
    """Return how many of the first lines have at most ``limit`` characters together."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > limit:
            return number
    return len(lines)


def _cut_line(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}... ({len(line):,} characters)"
