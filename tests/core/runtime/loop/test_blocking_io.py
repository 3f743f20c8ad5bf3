"""Work beside a loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import SimpleQueue

from patience import PATIENT_S

from sluiceway.runtime.loop.blocking_io import HelperThread


def test_threads_take_short_turns_while_there_is_work_beside_a_loop() -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    seen: list[float] = []
    before = sys.getswitchinterval()
    first, second = HelperThread(mails.put), HelperThread(mails.put)
    began: SimpleQueue[None] = SimpleQueue()
    goes_on: SimpleQueue[None] = SimpleQueue()

    def hold() -> float:
        began.put(None)
        goes_on.get()
        return sys.getswitchinterval()

    first.run(hold, lambda value, error: seen.append(value))
    began.get()
    second.run(sys.getswitchinterval, lambda value, error: seen.append(value))
    mails.get()()
    assert sys.getswitchinterval() == seen[0], "the other one still works"
    goes_on.put(None)
    mails.get()()
    first.close()
    second.close()
    assert seen[0] == seen[1] < before
    assert sys.getswitchinterval() == before


def test_what_work_raises_comes_back_as_a_mail() -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[BaseException | None] = []
    before = sys.getswitchinterval()
    helper = HelperThread(mails.put)
    helper.run(lambda: 1 / 0, lambda value, error: told.append(error))
    mails.get()()
    helper.close()
    assert isinstance(told[0], ZeroDivisionError)
    assert sys.getswitchinterval() == before


def test_work_that_would_end_its_thread_is_told_of_as_well() -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[BaseException | None] = []
    helper = HelperThread(mails.put)
    helper.run(lambda: sys.exit(3), lambda value, error: told.append(error))
    mails.get(timeout=PATIENT_S)()
    helper.close()
    assert "raised SystemExit(3), which is meant to end a process" in str(told[0])
