from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable

import pytest

from sluiceway.runtime.cluster import remote_logs as toldlines
from sluiceway.runtime.cluster.remote_logs import RemoteLogHandler, show_lines


class Way:
    """To a job manager that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.mailed: list[Callable[[], None]] = []
        self.sent: list[bytes] = []
        self.backlog = 0
        self.log = RemoteLogHandler("worker-1", "info", self.send, self.mailed.append, lambda: self.backlog)

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.backlog += len(data)

    def turn(self) -> None:
        for action in self.mailed:
            action()
        self.mailed.clear()

    def lines(self) -> list[str]:
        return [json.loads(line)["message"] for data in self.sent for line in data.splitlines()]


def test_lines_are_sent_from_the_loop() -> None:
    way = Way()
    way.log.printed("STDOUT", ["a", "b"])
    assert way.sent == []
    way.turn()
    assert way.lines() == ["a", "b"]


def test_records_below_the_level_are_not_sent() -> None:
    way = Way()
    for level, text in ((logging.DEBUG, "low"), (logging.INFO, "high")):
        way.log.emit(logging.LogRecord("mine", level, "file.py", 1, text, (), None))
    way.turn()
    assert way.lines() == ["high"]


def test_what_can_wait_does_when_much_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toldlines, "_ROOM", 100)
    way = Way()
    assert way.log.room() is None
    way.log.printed("STDOUT", ["a" * 100])
    wait = way.log.room()  # in the loop's mail
    assert wait is not None
    assert wait.until is not None
    way.turn()
    assert way.log.room() is not None  # in the connection
    way.backlog = 0
    assert way.log.room() is None


def test_lines_are_left_out_and_counted_when_nobody_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toldlines, "_MOST", 100)
    way = Way()
    way.log.printed("STDOUT", ["a" * 100])
    way.turn()
    way.log.printed("STDOUT", ["b", "c"])
    way.backlog = 0
    way.log.printed("STDOUT", ["d"])
    way.turn()
    assert way.lines()[1:] == [
        "2 lines were left out: they came faster than the job manager takes them",
        "d",
    ]


def test_lines_go_where_they_went(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way()
    way.log.printed("STDOUT", ["out"])
    way.log.printed("STDERR", ["err"])
    way.log.emit(logging.LogRecord("mine", logging.WARNING, "file.py", 1, "logged", (), None))
    way.turn()
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    show_lines(b"".join(way.sent), "text")
    assert out.getvalue() == "out\n"
    first, second = err.getvalue().splitlines()
    assert first == "err"
    assert second.endswith("WARNING [worker-1] mine: logged")
    monkeypatch.setattr(sys, "stdout", None)
    show_lines(b"".join(way.sent), "json")
