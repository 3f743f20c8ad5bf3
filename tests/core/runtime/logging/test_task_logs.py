"""Log records know which task they come from, and a run leaves a program's own logging as it was."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

LOGGER = logging.getLogger("mine")


class Own:
    """A handler of a program's own, and what it has written."""

    def __init__(self, style: str) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(logging.Formatter(style))

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def own() -> Iterator[Own]:
    made = Own("%(job)s|%(operator)s|%(subtask)s|%(attempt)s|%(worker)s|%(message)s")
    made.handler.addFilter(sw.TaskLogFilter("here"))
    LOGGER.addHandler(made.handler)
    yield made
    LOGGER.removeHandler(made.handler)


class Talks(sw.MapFunction[int, int]):
    def open(self, context: sw.RuntimeContext) -> None:
        LOGGER.warning("open")

    def map(self, value: int) -> int:
        LOGGER.warning("map %d", value)
        return value

    def close(self) -> None:
        LOGGER.warning("close")


def test_the_step_that_logs_is_named_in_a_chain_and_in_its_whole_life(own: Own) -> None:
    flow = sw.Pipeline("logs")
    numbers = flow.from_collection([1, 2]).map(Talks()).name("first")
    numbers.filter(lambda v: LOGGER.warning("filter %d", v) is None).name("second").sink(DiscardSink())
    LOGGER.warning("before")
    flow.run()
    LOGGER.warning("after")
    assert own.lines[0] == "||||here|before"
    assert own.lines[-1] == "||||here|after"
    assert sorted(own.lines[1:-1]) == sorted(
        [
            "logs|first|0|0|here|open",
            "logs|first|0|0|here|map 1",
            "logs|first|0|0|here|map 2",
            "logs|second|0|0|here|filter 1",
            "logs|second|0|0|here|filter 2",
            "logs|first|0|0|here|close",
        ]
    )


def test_subtasks_and_attempts_are_told_apart(own: Own) -> None:
    class Fails(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.attempt = context.attempt_number

        def map(self, value: int) -> int:
            LOGGER.warning("%d", value)
            if self.attempt == 0:
                raise ValueError("once")
            return value

    flow = sw.Pipeline("again", parallelism=2)
    flow.from_collection([1, 2]).map(Fails()).name("fails").sink(DiscardSink())
    flow.run(restart="fixed-delay:9:0ms")
    assert {"again|fails|0|0|here|1", "again|fails|0|1|here|1", "again|fails|1|1|here|2"} <= set(own.lines)


def test_coroutines_and_threads_know_the_task_that_has_started_them(own: Own) -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(0)
        LOGGER.warning("coroutine")
        await asyncio.to_thread(LOGGER.warning, "thread")
        return value

    flow = sw.Pipeline("async")
    flow.from_collection([1]).rebalance().async_map(slow, timeout=None).name("call").sink(DiscardSink())
    flow.run(chaining=False)
    assert set(own.lines) == {"async|call|0|0|here|coroutine", "async|call|0|0|here|thread"}


def test_what_a_program_says_itself_is_not_overwritten(own: Own) -> None:
    flow = sw.Pipeline("extra")
    extra = {"job": "mine", "subtask": 7}
    flow.from_collection([1]).map(lambda v: LOGGER.warning("x", extra=extra)).sink(DiscardSink())
    flow.run()
    assert own.lines == ["mine|map|7|0|here|x"]


def test_during_a_run_the_handlers_of_the_root_logger_have_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = [(h, list(h.filters)) for h in root.handlers], root.level
    flow = sw.Pipeline("root")
    flow.from_collection([1]).map(lambda v: LOGGER.info("told")).name("teller").sink(DiscardSink())
    flow.run(log_level="info")
    (told,) = [r for r in caplog.records if r.name == "mine"]
    assert (told.job, told.operator, told.subtask) == ("root", "teller", 0)  # type: ignore[attr-defined]
    assert ([(h, list(h.filters)) for h in root.handlers], root.level) == before
    caplog.clear()
    flow.run()
    assert [r for r in caplog.records if r.name == "mine"] == [], "the root logger's own level holds again"


PROGRAM = """
    import logging, sys
    import sluiceway as sw
    from sluiceway.connector.lib import DiscardSink

    def talk(value):
        logging.getLogger("mine").info("told")
        try:
            raise KeyError(value)
        except KeyError:
            logging.getLogger("mine").warning("caught", exc_info=True)
        return value

    flow = sw.Pipeline("talks", parallelism=2)
    flow.from_collection([1]).map(talk).name("talk").sink(DiscardSink())
    if __name__ == "__main__":
        flow.run(**eval(sys.argv[1]))
        assert not logging.getLogger().handlers
"""


def run(options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", dedent(PROGRAM), options],
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=True,
    )
    return done.stderr.splitlines()


def test_a_program_without_logging_sees_warnings_on_stderr_with_where_they_come_from() -> None:
    lines = run("{}")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING \[talks 'talk' [12]/2\] mine: caught", lines[0]
    ), lines
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 1"
    assert not any("told" in line for line in lines)


def test_lines_are_json_objects_where_that_is_asked_for() -> None:
    lines = [json.loads(line) for line in run("{'log_level': 'info', 'log_format': 'json'}")]
    mine = [line for line in lines if line["logger"] == "mine"]
    assert [(line["level"], line["message"]) for line in mine] == [("INFO", "told"), ("WARNING", "caught")]
    assert mine[0] == {
        "time": mine[0]["time"],
        "level": "INFO",
        "process": "",
        "logger": "mine",
        "message": "told",
        "job": "talks",
        "operator": "talk",
        "subtask": mine[0]["subtask"],
        "parallelism": 2,
        "attempt": 0,
    }
    assert mine[1]["traceback"].endswith("KeyError: 1")
    about = [(line["job"], line["message"]) for line in lines if line["logger"] == "sluiceway.jobs"]
    assert about == [("talks", "is running, was created"), ("talks", "is finished, was running")]


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(sw.ConfigurationError, match="is not one of debug, info, warning, error, critical"):
        sw.Pipeline("x").run(log_level="loud")
    with pytest.raises(sw.ConfigurationError, match="log_format='xml' is not text or json"):
        sw.Pipeline("x").run(log_format="xml")
