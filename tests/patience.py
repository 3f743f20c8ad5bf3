"""The end of every wait in the tests that ends as soon as something happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

__all__ = ["PATIENT_S", "until"]

T = TypeVar("T")

# Ten minutes: a test passes as soon as the thing happens, however slow the machine is, and a hang still fails
# before the timeout of pytest itself.
PATIENT_S = 600

_STEP_S = 0.02


def until(condition: Callable[[], T], step_s: float = _STEP_S) -> T:
    """Return the first true value of a condition.

    For what another process does and nothing announces. A test that can wait for an event does so.

    Raises:
        pytest.fail.Exception: the condition has not become true within `PATIENT_S`.
    """
    pause = threading.Event()
    end = time.monotonic() + PATIENT_S
    while True:
        if found := condition():
            return found
        if time.monotonic() > end:
            pytest.fail(f"the condition has not become true within {PATIENT_S} s")
        pause.wait(step_s)
