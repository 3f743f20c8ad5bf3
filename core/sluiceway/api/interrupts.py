"""Handling of Ctrl-C while a job runs in the calling thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sluiceway.engine import Job
from sluiceway.util.signal_output import say_from_handler

__all__ = ["Interrupts", "cancel_on_sigint", "say_cancelling"]


class Interrupts:
    """Counter of Ctrl-C presses.

    Attributes:
        count: number of times since the context was entered.
    """

    def __init__(self) -> None:
        self.count = 0

    def raise_if_any(self, job_name: str) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed.

        A program, or "run all" of a notebook, does not go on with part of the results then.
        """
        if self.count:
            raise KeyboardInterrupt(f"job {job_name!r} was cancelled")


@contextmanager
def cancel_on_sigint(
    job: Job,
    *,
    cancel: Callable[[], None] | None = None,
    first: Callable[[], None] | None = None,
    again: Callable[[], None] | None = None,
) -> Iterator[Interrupts]:
    """Cancel the job at the first Ctrl-C within this context, and raise KeyboardInterrupt at the next one.

    The previous handler is restored at the end. Outside the main thread, and where the program has
    installed a handler of its own or has SIGINT ignored (as a shell does for ``command &``), nothing changes.

    Args:
        job: what to cancel; its ``run`` is then called inside the context.
        cancel: called at the first Ctrl-C instead of the job's own; runs in the signal handler.
        first: called after the first Ctrl-C, to notify the user. Runs in the signal handler.
        again: called at every later one; None: raise KeyboardInterrupt in the main thread.
    """
    interrupts = Interrupts()

    def handle(number: int, frame: FrameType | None) -> None:
        interrupts.count += 1
        if interrupts.count == 1:
            (cancel or job.cancel)()
            if first is not None:
                first()
        elif again is not None:
            again()
        else:
            raise KeyboardInterrupt

    # Python sets signal handlers in the main thread only.
    ours = threading.current_thread() is threading.main_thread()
    old: Any = signal.getsignal(signal.SIGINT) if ours else None
    if old not in (signal.default_int_handler, signal.SIG_DFL):
        yield interrupts
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, old)


def say_cancelling() -> None:
    """Write the effect of Ctrl-C, and of another one, to stderr out of the signal handler."""
    say_from_handler("cancelling; Ctrl-C again ends at once")
