"""Ctrl-C in the process itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway.api.interrupts import cancel_on_sigint
from sluiceway.engine import Job


class Cancellable:
    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture(autouse=True)
def _python_default() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def job() -> Any:
    return Cancellable()


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_cancels_and_the_second_interrupts(job: Any) -> None:
    def run() -> None:
        with cancel_on_sigint(job) as interrupts:
            press()
            assert (job.cancelled, interrupts.count) == (1, 1)
            press()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert job.cancelled == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_whoever_wants_to_is_told(job: Any) -> None:
    told: list[str] = []
    with cancel_on_sigint(job, first=lambda: told.append("first"), again=lambda: told.append("again")):
        press()
        press()
        press()
    assert told == ["first", "again", "again"]


def test_afterwards_ctrl_c_is_what_it_was(job: Any) -> None:
    with cancel_on_sigint(job):
        pass
    with pytest.raises(KeyboardInterrupt):
        press()
    assert job.cancelled == 0


def test_a_handler_of_the_programs_own_is_left_alone(job: Any) -> None:
    theirs: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: theirs.append(number))
    with cancel_on_sigint(job):
        press()
    assert theirs == [signal.SIGINT]
    assert job.cancelled == 0


def test_an_ignored_signal_stays_ignored(job: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with cancel_on_sigint(job):
        press()
    assert job.cancelled == 0


def test_in_another_thread_nothing_happens(job: Job) -> None:
    seen: list[Any] = []

    def run() -> None:
        with cancel_on_sigint(job) as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.count))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(signal.default_int_handler, 0)]
