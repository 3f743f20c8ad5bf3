"""``sluiceway top``: rates and shares from figures, the table, and a cluster that is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sluiceway.cli.terminal import shows_colours
from sluiceway.cli.top import Meter, Row, table
from sluiceway.elements import MAX_WATERMARK
from sluiceway.metrics import JobMetrics, SubtaskMetrics

BUSY = SubtaskMetrics("map", 0, "running", 80, 40, 8.0, 1.0, 1.0, vertex_id=1, output_watermark=9_000, at_ms=1_000)
IDLE = SubtaskMetrics("map", 1, "running", 20, 10, 1.0, 0.0, 9.0, vertex_id=1, output_watermark=5_000, at_ms=1_500)
SINK = SubtaskMetrics(
    "sink", 0, "running", idle_s=10.0, vertex_id=2, backlog=3, buffers=16, buffers_in_use=4, at_ms=1_000
)


def metrics(*subtasks: SubtaskMetrics, **rest: Any) -> JobMetrics:
    return JobMetrics("wc", "running", 10.0, 100, 50, subtasks, **rest)


def test_the_first_figures_are_since_the_start() -> None:
    first, second = Meter().rows("wc-1", metrics(BUSY, IDLE, SINK))
    assert first == Row("map", 10.0, 5.0, 0.8, 0.1, 0.1, 0.0, ((0.8, 0.1), (0.1, 0.0)), 5_000, 0, 0, 0)
    assert second == Row("sink", 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, ((0.0, 0.0),), None, 3, 4, 16)


def test_time_in_which_a_task_waits_for_its_turn_counts() -> None:
    waited = replace(BUSY, busy_s=2.0, backpressured_s=0.0, idle_s=0.0)
    [row] = Meter().rows("wc-1", metrics(waited))
    assert (row.busy, row.waiting) == (0.2, 0.8)


def test_later_ones_are_since_those_before_by_the_workers_own_clock() -> None:
    meter = Meter()
    meter.rows("wc-1", metrics(BUSY))
    later = replace(BUSY, records_in=180, records_out=40, busy_s=8.5, backpressured_s=2.5, at_ms=3_000)
    expected = Row("map", 50.0, 0.0, 0.25, 0.75, 0.0, 0.0, ((0.25, 0.75),), 9_000, 0, 0, 0)
    assert meter.rows("wc-1", metrics(later)) == [expected]
    # Asked again before the worker has told anything new: the same, not nothing.
    assert meter.rows("wc-1", metrics(later)) == [expected]


def test_a_new_attempt_begins_anew_and_jobs_are_kept_apart() -> None:
    meter = Meter()
    meter.rows("wc-1", metrics(BUSY))
    again = replace(BUSY, attempt=1, records_in=5, busy_s=1.0, backpressured_s=0.0, idle_s=0.0, at_ms=2_000)
    assert meter.rows("wc-1", metrics(again))[0].in_per_s == 5.0
    assert meter.rows("wc-2", metrics(BUSY))[0].in_per_s == 8.0


def test_subtasks_at_their_end_do_not_speak_for_those_without_a_watermark() -> None:
    # As of a source with fewer splits than subtasks.
    begun, ended = replace(BUSY, output_watermark=None), replace(IDLE, output_watermark=MAX_WATERMARK)
    assert Meter().rows("wc-1", metrics(begun, ended))[0].watermark is None
    assert Meter().rows("wc-1", metrics(BUSY, ended))[0].watermark == 9_000
    assert Meter().rows("wc-1", metrics(begun, replace(BUSY, subtask=2), ended))[0].watermark == 9_000
    assert Meter().rows("wc-1", metrics(ended))[0].watermark == MAX_WATERMARK


def test_the_table_has_a_character_for_each_subtask() -> None:
    row = Row("map", 12_345.0, 5.0, 1.0, 0.6, 0.0, 0.4, ((1.0, 0.0), (0.35, 0.6), (0.0, 0.0)), 5_000, 7, 4, 16)
    head, line = table([row], colour=False)
    assert head.split()[:8] == ["operator", "in/s", "out/s", "busy", "blocked", "idle", "waiting", "subtasks"]
    assert line.split() == [
        "map",
        "12k",
        "5",
        "100%",
        "60%",
        "0%",
        "40%",
        "9#0",
        "1970-01-01",
        "00:00:05",
        "7",
        "4/16",
    ]


def test_colours_change_nothing_but_colours() -> None:
    rows = [
        Row("a" * 50, 1.0, 1.0, 1.0, 0.9, 0.0, 0.0, ((1.0, 0.0), (0.1, 0.9)), None, 0, 0, 0),
        Row("b", 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, ((0.0, 0.0),), None, 0, 0, 0),
    ]
    plain, coloured = table(rows, colour=False), table(rows, colour=True)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain
    assert "\x1b[48;5;160m100%\x1b[0m" in coloured[1]
    assert "\x1b[48;5;160m9\x1b[0m\x1b[48;5;235m#\x1b[0m" in coloured[1]
    assert "\x1b" not in coloured[2]
    assert len({len(line) for line in plain}) == 1
    assert plain[1].startswith("a" * 37 + "...")


def test_without_a_cluster_it_says_how_to_start_one(
    sluiceway: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path / "home"))
    result = sluiceway("top", "--once")
    assert "no cluster is running: start one with sluiceway cluster start" in str(
        result.stderr or result.exception
    )


ENDLESS = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("endless")
flow.generate(count=10**12).map(abs).rebalance().sink(DiscardSink())
"""


def test_a_running_cluster(cluster: Any, place: Path) -> None:
    (place / "endless.py").write_text(ENDLESS)
    assert cluster("cluster", "start", "--workers", "1").returncode == 0
    assert cluster("top").stdout == "no job is running\n"
    wrong = cluster("top", "other-1")
    assert (wrong.returncode, "there is no job 'other-1'" in wrong.stderr) == (2, True)
    for _ in range(2):
        cluster("submit", "endless.py")
    told = cluster.until(lambda: (t := cluster.json("top")["endless-2"])["records_in"] and t)
    assert [row["operator"].partition("(")[0] for row in told["operators"]] == ["source", "sink"]
    assert told["operators"][0]["busy"] > 0
    lines = cluster("top", "--once", "endless-1").stdout.splitlines()
    assert lines[0].startswith("endless-1: running for ")
    assert lines[1].startswith("operator ")
    assert lines.index("") == 4
    assert [line.split()[0] for line in lines[5:]] == ["process", "jobmanager", "worker-1"]
    both = cluster("top", "--once").stdout
    assert both.count("operator ") == 2
    cluster("cancel", "endless-1")
    cluster.comes_to_be("endless-1", "canceled")
    assert "endless-1" not in cluster("top", "--once").stdout


def test_the_screen_of_a_terminal_is_given_back_and_never_scrolls(cluster: Any, on_terminal: Any) -> None:
    cluster("cluster", "start", "--workers", "1")
    shown = on_terminal("top", until="no job is running")
    # Without wrapped lines: a narrow terminal would scroll at each update.
    assert shown.startswith("\x1b[?1049h\x1b[?25l\x1b[?7l")
    assert shown.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert on_terminal.ended == 143
    assert on_terminal("top", TERM="dumb") == "no job is running\n"
    assert on_terminal.ended == 0


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_have_them_and_can_be_turned_off(
    environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert shows_colours(Terminal()) is coloured
    assert not shows_colours(StringIO())
