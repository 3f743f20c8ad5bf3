"""Signals that come just before the system call of a sleep."""

from __future__ import annotations

import _thread
import os
import selectors
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway.runtime.loop.poller import SelectorPoller


class LateSignals(selectors.DefaultSelector):
    """Selector whose first sleep begins after a signal, which can no longer interrupt it."""

    came = False

    def select(self, timeout: float | None = None) -> Any:
        if not self.came:
            self.came = True
            # Marks the signal as the interpreter's own handler does, which needs no system call to return.
            _thread.interrupt_main(signal.SIGUSR1)
        return super().select(timeout)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    came: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGUSR1, old)


@pytest.fixture
def poller(monkeypatch: pytest.MonkeyPatch) -> Iterator[SelectorPoller]:
    monkeypatch.setattr(selectors, "DefaultSelector", LateSignals)
    found = SelectorPoller()
    yield found
    found.close()


def test_a_signal_before_the_system_call_ends_the_sleep(poller: SelectorPoller, handled: list[int]) -> None:
    poller.poll(None)
    assert handled == [signal.SIGUSR1]
    assert signal.set_wakeup_fd(-1) == -1


def test_signals_go_on_to_a_file_of_the_program(poller: SelectorPoller, handled: list[int]) -> None:
    out, into = os.pipe()
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into)
    try:
        poller.poll(0.001)
        assert os.read(out, 1) == bytes([signal.SIGUSR1])
    finally:
        assert signal.set_wakeup_fd(-1) == into
        os.close(out)
        os.close(into)
