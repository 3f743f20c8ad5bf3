"""Work beside a loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from threading import enumerate as threads

import pytest
from patience import PATIENT_S, until

from sluiceway.runtime.loop import blocking_io
from sluiceway.runtime.loop.blocking_io import Backgrounds, HelperThread


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
    first.close("job")
    second.close("job")
    assert seen[0] == seen[1] < before
    assert sys.getswitchinterval() == before


def test_it_can_be_closed_after_ctrl_c_in_the_start_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: Thread) -> None:
        raise KeyboardInterrupt

    helper = HelperThread(lambda action: None)
    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        helper.run(lambda: None, lambda value, error: None)
    helper.close("job")


def test_what_work_raises_comes_back_as_a_mail() -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[BaseException | None] = []
    before = sys.getswitchinterval()
    helper = HelperThread(mails.put)
    helper.run(lambda: 1 / 0, lambda value, error: told.append(error))
    mails.get()()
    helper.close("job")
    assert isinstance(told[0], ZeroDivisionError)
    assert sys.getswitchinterval() == before


def test_work_that_would_end_its_thread_is_told_of_as_well() -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[BaseException | None] = []
    helper = HelperThread(mails.put)
    helper.run(lambda: sys.exit(3), lambda value, error: told.append(error))
    mails.get(timeout=PATIENT_S)()
    helper.close("job")
    assert "raised SystemExit(3), which is meant to end a process" in str(told[0])


def test_its_thread_ends_when_no_work_comes_and_another_one_takes_what_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_io, "_IDLE_S", 0.0)
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[int] = []
    helper = HelperThread(mails.put, "ends-when-idle")
    for number in range(3):
        helper.run(lambda number=number: number, lambda value, error: told.append(value))
        mails.get(timeout=PATIENT_S)()
        for thread in threads():
            if thread.name == "ends-when-idle":
                thread.join(PATIENT_S)
        assert not helper.busy
    helper.close("job")
    assert told == [0, 1, 2]


def test_work_of_one_job_does_not_wait_for_that_of_another_even_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[str] = []
    answers = Event()
    backgrounds = Backgrounds(lambda: HelperThread(mails.put))
    backgrounds.of("stuck").run(answers.wait, lambda value, error: told.append("stuck"))
    other = backgrounds.of("other")
    other.run(lambda: None, lambda value, error: told.append("other"))
    mails.get(timeout=PATIENT_S)()
    assert told == ["other"]
    until(lambda: not other.busy)  # its thread sends the mail first
    backgrounds.drop("other")
    backgrounds.drop("stuck")
    backgrounds.close(0.0)
    (record,) = caplog.records
    assert record.message == "its storage has not answered: files of checkpoints may be left there"
    assert record.job == "stuck"  # type: ignore[attr-defined]
    answers.set()
    backgrounds.close(PATIENT_S)
    mails.get(timeout=PATIENT_S)()
    assert told == ["other", "stuck"]


def test_a_search_of_a_source_that_is_abandoned_leaves_no_files(caplog: pytest.LogCaptureFixture) -> None:
    """A job without checkpoints has no storage, but may have sources that search one."""
    mails: SimpleQueue[Callable[[], None]] = SimpleQueue()
    answers = Event()
    backgrounds = Backgrounds(lambda: HelperThread(mails.put))
    backgrounds.of("job", searches=True).run(answers.wait, lambda value, error: None)
    assert backgrounds.of("job") is not backgrounds.of("job", searches=True)
    backgrounds.close(0.0)
    (record,) = caplog.records
    expected = "what a source searches has not answered: the search is abandoned"
    assert (record.message, record.job) == (expected, "job")  # type: ignore[attr-defined]
    answers.set()
    backgrounds.drop("job")
    backgrounds.close(PATIENT_S)
