"""Control characters in names, keys, records, logs and errors: seen on a terminal, which they do not change."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENT_S

import sluiceway.cli
from sluiceway.cli.tables import print_table
from sluiceway.cli.terminal import LiveLine
from sluiceway.runtime.cluster.log_files import LogFile
from sluiceway.runtime.logging.task_logs import make_line
from sluiceway.util.signal_output import ERASE
from sluiceway.util.visible_text import cut_to, padded, visible, visible_line, width_of

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b1A\u202eb\x7f\x08c"
SEEN = r"a\x1b]0;title\x07\x1b[2J\u009b1A\u202eb\u007f\x08c"
"""Both forms of escapes occur: that of :func:`repr`, and from DEL on one that JSON has as well."""
PROGRAM = f"""
HOSTILE = {HOSTILE!r}

def fail(value):
    if value == HOSTILE:
        raise ValueError("cannot " + value)
    return value + HOSTILE

flow = sw.Pipeline("flow" + HOSTILE)
values = flow.from_collection([HOSTILE, "x"]).map(fail).name("step" + HOSTILE)
values.key_by(lambda v: v).count().uid("counted" + HOSTILE).print()
"""


def piped(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway", *arguments],
        capture_output=True, text=True, check=False, timeout=PATIENT_S,
    )  # fmt: skip
    return done.stdout


def unseen(text: str) -> list[str]:
    return [c for c in text if c != "\n" and (unicodedata.category(c) == "Cc" or c == "\u202e")]


@given(st.text())
def test_a_visible_text_has_no_control_characters(text: str) -> None:
    assert not [c for c in visible(text) if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not [c for c in visible_line(text) if unicodedata.category(c) in ("Cc", "Cs")]
    assert visible(visible(text)) == visible(text)


def test_every_mark_of_writing_direction_is_visible() -> None:
    controls = {"ALM", "LRM", "RLM", "LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    marks = [chr(c) for c in range(0x110000) if unicodedata.bidirectional(chr(c)) in controls]
    marks += ["\u061c", "\u200e", "\u200f"]
    assert visible("".join(marks)).isascii()


def test_text_of_every_script_stays() -> None:
    text = "naïve Ελλάδα עברית العربية 日本語 👩\u200d🚀\ttab\n"
    assert visible(text) == text
    assert visible_line(text) == text.replace("\t", r"\t").replace("\n", r"\n")


def test_json_on_a_terminal_stays_json() -> None:
    assert json.loads(visible(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE


@pytest.mark.parametrize("command", ["explain", "run", "run --workers 1", "run --log-level debug"])
def test_names_and_errors_of_a_program_do_not_change_the_terminal(
    command: str, write: Any, on_terminal: Any
) -> None:
    write("job.py", PROGRAM)
    shown = re.sub(r"\r\x1b\[2K", "", on_terminal(*command.split(), "job.py"))
    assert unseen(shown) == []
    assert (f"step{SEEN}" if command == "explain" else f"flow{SEEN}: failed") in shown
    if command != "explain":
        assert f"ValueError: cannot {SEEN}" in shown


def test_state_and_skipped_records_do_not_change_the_terminal(
    write: Any, sluiceway: Any, on_terminal: Any
) -> None:
    write("job.py", PROGRAM)
    options = (
        "--on-error",
        "skip",
        "--dead-letters",
        "dead",
        "--checkpoints",
        "kept",
        "--checkpoint-interval",
        "1h",
    )
    assert sluiceway("run", "-q", *options, "job.py").exit_code == 0
    (checkpoint,) = Path("kept").glob("*/chk-*")
    for command in ("state show", "state size", "checkpoints show", "savepoint inspect"):
        shown = on_terminal(*command.split(), str(checkpoint))
        assert unseen(shown) == []
        assert f"counted{SEEN}" in shown
    shown = on_terminal("dlq", "show", "dead", "--traceback")
    assert unseen(shown) == []
    assert f"step{SEEN} of flow{SEEN}, subtask 1" in shown
    assert f"ValueError: cannot {SEEN}" in shown


def test_logs_are_escaped_on_a_terminal_and_not_in_a_pipe(place: Path, on_terminal: Any) -> None:
    log = LogFile(place / "home" / "logs", "worker-1", "info")
    log.write([make_line(1.0, "INFO", "worker-1", "mine", f"saw {HOSTILE}", None)])
    log.close()
    shown = on_terminal("logs")
    assert unseen(shown) == []
    assert f"saw {SEEN}\n" in shown
    (line,) = on_terminal("logs", "--json").splitlines()
    assert unseen(line) == []
    assert json.loads(line)["message"] == f"saw {HOSTILE}"

    assert f"saw {HOSTILE}\n" in piped("logs")
    assert json.loads(piped("logs", "--json"))["message"] == f"saw {HOSTILE}"


def test_messages_about_wrong_arguments_are_escaped(on_terminal: Any) -> None:
    shown = on_terminal("run", "--engine", HOSTILE, HOSTILE)
    assert unseen(shown) == []
    assert unseen(on_terminal(HOSTILE)) == []
    assert unseen(on_terminal("logs", "--level", HOSTILE)) == []


def test_rows_of_tables_are_lines_wherever_they_go(capsys: Any) -> None:
    from sluiceway.cli.tables import print_table

    print_table(("NAME", "N"), [("a\nb\tc\x1b[2J", "1"), ("d", "2")])
    assert capsys.readouterr().out == "NAME            N\na\\nb\\tc\\x1b[2J  1\nd               2\n"


def test_commands_print_in_one_place() -> None:
    # Where there is one more, text of any origin gets to the terminal as it is.
    own = {
        ("output.py", "click.echo("),
        ("__init__.py", "print("),
        ("run.py", "print("),
        ("top.py", "click.echo("),
    }
    folder = Path(sluiceway.cli.__file__).parent
    found = {
        (file.name, call)
        for file in folder.glob("*.py")
        for call in re.findall(r"(?<![\w.])(?:click\.echo|print)\(", file.read_text())
    }
    assert found == own


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("注文", 4), ("\U0001f4b6", 2), ("e\u0301", 1), ("\uff9d\uff9e", 2), ("", 0), ("é", 1)],
)
def test_ideographs_and_emoji_take_two_columns(text: str, columns: int) -> None:
    assert width_of(text) == columns
    assert padded(text, columns + 2) == text + "  "
    assert cut_to(text, columns) == text
    assert width_of(cut_to("x" + text, columns)) <= columns


def test_columns_of_a_table_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["job", "status"], [["注文-1", "RUNNING"], ["x-1", "FAILED"]])
    lines = capsys.readouterr().out.splitlines()
    second = [
        width_of(line[: line.index(word)]) for line, word in zip(lines, ("status", "RUN", "FAIL"), strict=True)
    ]
    assert second == [8, 8, 8]


def test_a_live_line_of_wide_characters_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    stream = io.StringIO()
    LiveLine(stream).show("注文" * 10)
    assert stream.getvalue() == ERASE + "注文注文"
