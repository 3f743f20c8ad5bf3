"""Texts of exceptions whose own methods misbehave, and exceptions on their way out of a worker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pickle import PicklingError
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.errors import FunctionContractError
from sluiceway.runtime.failures import error_texts as errortexts
from sluiceway.runtime.failures.error_texts import cut, describe, format_error, within
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway.runtime.messages import pickling as shipping
from sluiceway.runtime.messages.pickling import RemoteTraceback, WorkerError, dump_error, load_error

released = threading.Event()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little patience, and an end to what hangs."""
    released.clear()
    for module in (errortexts, shipping):
        monkeypatch.setattr(module, "LIMIT_S", 0.2)
    before = set(threading.enumerate())
    yield
    released.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENT_S)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough on a loaded machine, for exceptions that are large and do not hang."""
    for module in (errortexts, shipping):
        monkeypatch.setattr(module, "LIMIT_S", PATIENT_S)


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class LeavingError(Exception):
    def __str__(self) -> str:
        sys.exit(4)


class HangingTextError(Exception):
    def __str__(self) -> str:
        released.wait()
        return ""


class LeavesWhenPickledError(Exception):
    def __reduce__(self) -> Any:
        sys.exit(3)


class HangsWhenPickledError(Exception):
    def __reduce__(self) -> Any:
        released.wait()
        return super().__reduce__()


class HangsWhenLoadedError(Exception):
    def __reduce__(self) -> Any:
        return released.wait, ()


def no_exception() -> int:
    return 5


class ComesBackAsNumberError(Exception):
    def __reduce__(self) -> Any:
        return no_exception, ()


class WithMuchError(Exception):
    def __init__(self, much: bytes) -> None:
        super().__init__("has much")
        self.much = much
        self.lock = threading.Lock()


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def circular() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def deep_causes() -> BaseException:
    error: BaseException = ValueError("innermost")
    for number in range(3_000):
        outer = ValueError(str(number))
        outer.__cause__, error = error, outer
    return error


def deep_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for number in range(3_000):
        error = ExceptionGroup(str(number), [error])
    return error


def odd_notes() -> BaseException:
    error = ValueError("odd notes")
    error.__notes__ = 5  # type: ignore[assignment]
    return error


def many_notes() -> BaseException:
    error = ValueError("many notes")
    for number in range(50_000):
        error.add_note(f"note {number}")
    return error


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: ValueError("plain"), ValueError, "ValueError: plain"),
        (lambda: ValueError("x" * (16 << 20)), ValueError, "... (16,777,2"),
        (lambda: ValueError("\n".join(["line"] * (1 << 20))), ValueError, "lines are left out)"),
        (lambda: SilentError("a"), WorkerError, "SilentError"),
        (lambda: LeavingError("a"), WorkerError, "LeavingError"),
        (lambda: LeavesWhenPickledError("a"), LeavesWhenPickledError, "LeavesWhenPickledError: a"),
        (lambda: ComesBackAsNumberError("a"), ComesBackAsNumberError, "ComesBackAsNumberError: a"),
        (lambda: WithMuchError(b"x" * (8 << 20)), WithMuchError, "WithMuchError: has much"),
        (lambda: ExceptionGroup("some", [WithMuchError(b""), KeyError(1)]), ExceptionGroup, "KeyError: 1"),
        (lambda: ExceptionGroup("many", [KeyError(1)] * 100_000), ExceptionGroup, "more exceptions"),
        (circular, ValueError, "ValueError: first"),
        (deep_causes, ValueError, "ValueError: 2999"),
        (deep_group, BaseException, "ExceptionGroup: 2999"),
        (odd_notes, ValueError, "ValueError: odd notes"),
        (many_notes, ValueError, "note 49999"),
    ],
)
def test_exceptions_of_any_make_are_sent_bounded(
    make: Callable[[], BaseException], kind: type[BaseException], text: str
) -> None:
    check_sent(make(), kind, text)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (HangingTextError("a"), WorkerError, "HangingTextError (its text cannot be shown: it takes more"),
        (HangsWhenPickledError("a"), HangsWhenPickledError, "HangsWhenPickledError: a"),
        (HangsWhenLoadedError("a"), HangsWhenLoadedError, "HangsWhenLoadedError: a"),
    ],
)
def test_exceptions_that_hang_are_sent_all_the_same(
    error: BaseException, kind: type[BaseException], text: str
) -> None:
    check_sent(error, kind, text)


def check_sent(error: BaseException, kind: type[BaseException], text: str) -> None:
    error = explain_failure(raised(error), vertex="chain", step="risky", subtask=1, parallelism=2)
    sent = dump_error(error)
    assert len(sent) < 4 << 20
    came = load_error(sent)
    assert isinstance(came, kind)
    assert "in step 'risky' of 'chain', subtask 2 of 2" in came.__notes__
    assert "" != str(came) != repr(came)
    cause = came.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert text in str(cause)
    assert "in raised\n" in str(cause)
    assert len(str(cause)) < 300_000


def test_arguments_that_cannot_be_sent_become_texts() -> None:
    came = load_error(dump_error(raised(WithMuchError(b"x" * (8 << 20)))))
    assert isinstance(came, WithMuchError)
    assert str(came) == "has much"
    assert "8,388," in str(came.much)
    assert "lock" in str(came.lock)


@pytest.mark.usefixtures("impatient")
def test_a_text_that_hangs_leaves_the_frames() -> None:
    error = raised(HangingTextError("a"))
    assert describe(error).startswith("HangingTextError (its text cannot be shown: ")
    assert "in raised" in format_error(error)


def test_describe_is_bounded() -> None:
    assert describe(ValueError("x" * 5_000)).endswith("xxx... (5,000 characters)")
    assert describe(ValueError()) == "ValueError"
    assert describe(SilentError()) == "SilentError (its text cannot be shown: its __str__ raised RuntimeError)"


def test_cut_keeps_beginning_and_end() -> None:
    lines = [f"line {number}" for number in range(50_000)]
    kept = cut(lines).splitlines()
    assert kept[0] == "line 0"
    assert kept[-1] == "line 49999"
    middle = next(line for line in kept if "left out" in line)
    left_out = int(middle.removeprefix("... (").removesuffix(" lines are left out)").replace(",", ""))
    assert left_out == len(lines) - len(kept) + 1
    assert cut(["a", "b"]) == "a\nb"


def test_work_without_a_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert within(1.0, lambda: "done", lambda why: "not done") == "done"
    assert within(1.0, lambda: sys.exit(1), lambda why: type(why).__name__) == "SystemExit"


def test_an_exception_of_the_user_is_no_contract_error() -> None:
    error = ValueError("theirs")
    assert explain_failure(error, vertex="a", step="a", subtask=0, parallelism=1) is error
    assert not isinstance(error, FunctionContractError)


def hinted(error: BaseException) -> str:
    explain_failure(error, vertex="map", step="map", subtask=0, parallelism=1)
    return "\n".join(error.__notes__)


@pytest.mark.parametrize(
    "text",
    [
        "Can't pickle <function f at 0x7f18b4a893a0>: attribute lookup f on __main__ failed",
        "Can't pickle <function f at 0x7f18b4a893a0>: import of module '__sluiceway__' failed",
        "Can't pickle <function f at 0x7f18b4a893a0>: it's not found as __main__.f",
    ],
)
def test_a_function_of_the_script_that_pickle_does_not_find_is_explained(text: str) -> None:
    assert "in a module that can be imported" in hinted(PicklingError(text))


def test_a_function_of_a_module_that_pickle_does_not_find_is_not_blamed_on_the_script() -> None:
    assert "script" not in hinted(PicklingError("Can't pickle <function f>: attribute lookup f on shop failed"))


def test_a_pool_that_has_lost_a_process_is_explained() -> None:
    assert "in a module that can be imported" in hinted(BrokenProcessPool("terminated abruptly"))


def test_what_passes_through_another_worker_has_the_traceback_of_the_first() -> None:
    try:
        raise load_error(dump_error(raised(ValueError("bad"))))
    except ValueError as received:
        again = load_error(dump_error(received))
    cause = again.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert cause.remote_traceback.count("Traceback") == 1
    assert "in raised" in cause.remote_traceback
