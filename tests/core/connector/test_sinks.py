"""The built-in sinks: what the conformance suites don't say."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.connector.lib import CallbackSink, Collected, CollectSink, DiscardSink, PrintSink
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.record_errors import locate
from sluiceway.testing.drivers import SinkDriver, drive_sink

# ---- print -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "parallelism", "expected"),
    [
        ("", 1, ["a", "b"]),
        ("", 2, ["1> a", "2> b"]),
        ("out", 1, ["out> a", "out> b"]),
        ("out", 2, ["out:1> a", "out:2> b"]),
    ],
)
def test_the_prefix_names_label_and_subtask(
    capsys: pytest.CaptureFixture[str], label: str, parallelism: int, expected: list[str]
) -> None:
    drive_sink(PrintSink(label), ["a", "b"], parallelism, batch_size=1)
    assert capsys.readouterr().out.splitlines() == expected


def test_it_prints_to_standard_error_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    drive_sink(PrintSink(stream="stderr"), [("a", 1)])
    assert capsys.readouterr() == ("", "('a', 1)\n")


def test_a_batch_is_one_write_and_a_flush_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            calls.append(text)
            return len(text)

        def flush(self) -> None:
            calls.append("flush")

    monkeypatch.setattr(sys, "stdout", Stream())
    with SinkDriver(PrintSink()) as driver:
        driver.write([1, 2, 3])
        driver.write([4])
        assert calls == ["1\n2\n3\n", "4\n"]
        driver.flush()
        assert "flush" in calls


def test_what_the_terminal_cannot_show_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(ConnectorError) as caught:
        drive_sink(PrintSink("price"), ["5", "7 \u20ac\u20ac", "8 \u20ac", "9"])
    assert str(caught.value) == (
        "cannot print '\u20ac\u20ac' of the line 'price> 7 \u20ac\u20ac': stdout is ascii. "
        "PYTHONIOENCODING=utf-8:backslashreplace makes it take every character"
    )


def test_a_closed_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    stream.close()
    with pytest.raises(
        ConnectorError, match=r"cannot print: stdout is closed or broken \(I/O operation on closed"
    ):
        drive_sink(PrintSink(), ["a"])


def test_without_a_console_nothing_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    drive_sink(PrintSink(), ["a"])


def test_a_record_that_cannot_be_shown_can_be_told() -> None:
    class Shy:
        def __str__(self) -> str:
            raise RuntimeError("no")

    shy = Shy()
    with pytest.raises(RuntimeError) as caught:
        drive_sink(PrintSink(), ["a", shy])
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert fault.value is shy


def test_an_unknown_stream_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="stream='stdlog' must be 'stdout' or 'stderr'"):
        PrintSink(stream="stdlog")  # type: ignore[arg-type]


def test_a_label_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="label=5 must be a text, which is put before each record"):
        PrintSink(5)  # type: ignore[arg-type]


# ---- collect ---------------------------------------------------------------------------------------------------


def test_what_is_collected_is_a_sequence() -> None:
    sink: CollectSink[int] = CollectSink()
    drive_sink(sink, [3, 1, 2])
    got = sink.collected
    assert got == [3, 1, 2]
    assert got == (3, 1, 2)
    assert got != [3, 1]
    assert (len(got), got[0], got[-1], got[1:], sorted(got), 1 in got) == (3, 3, 2, [1, 2], [1, 2, 3], True)
    assert repr(got) == "Collected([3, 1, 2])"
    got.clear()
    assert not got


def test_it_can_be_read_while_the_job_runs() -> None:
    sink: CollectSink[int] = CollectSink()
    with SinkDriver(sink) as driver:
        driver.write([1])
        assert sink.collected == [1]
        driver.write([2])
        assert sink.collected == [1, 2]


def test_in_this_process_a_copy_is_the_same_collection() -> None:
    sink: CollectSink[int] = CollectSink()
    drive_sink(pickle.loads(pickle.dumps(sink)), [1])
    drive_sink(copy.deepcopy(sink), [2])
    assert sink.collected == [1, 2]


def test_in_another_process_there_is_none() -> None:
    collected: Collected[int] = Collected()
    code = (
        "import pickle, sys\n"
        "from sluiceway.errors import SerializationError\n"
        "try:\n"
        f"    pickle.loads({pickle.dumps(collected)!r})\n"
        "except SerializationError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=PATIENT_S
    )
    assert done.stdout == (
        "collect() gives results to the process that made it and cannot work in another one. Run the job with "
        "workers=0 (in this process), or write to a sink that outlives the process, such as files\n"
    )


# ---- callback and discard --------------------------------------------------------------------------------------


def test_the_function_is_called_with_each_record() -> None:
    got: list[Any] = []
    drive_sink(CallbackSink(got.append), [1, 2, 3], batch_size=2)
    assert got == [1, 2, 3]


def test_or_with_each_batch_which_is_its_own() -> None:
    got: list[list[int]] = []
    drive_sink(CallbackSink(got.append, batch=True), [1, 2, 3], batch_size=2)
    assert got == [[1, 2], [3]]


def test_the_record_for_which_the_function_fails_can_be_told() -> None:
    def fussy(record: int) -> None:
        if record == 2:
            raise ValueError("not two")

    with pytest.raises(ValueError, match="not two") as caught:
        drive_sink(CallbackSink(fussy), [1, 2, 3])
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert fault.value == 2


async def _coroutine(record: Any) -> None: ...


def _generator(record: Any) -> Any:
    yield record


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("print", "CallbackSink needs a function of one argument, not 'print'"),
        (_coroutine, "CallbackSink cannot call _coroutine(), which is async: pass a plain function"),
        (
            _generator,
            "CallbackSink: calling _generator() would not run it, because it contains yield; to",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CallbackSink(function)
    assert str(caught.value).startswith(message)


def test_discard_takes_everything() -> None:
    drive_sink(DiscardSink(), [1, "two", None], 2)
