"""What people see of an error: their own frames, with what the engine knows about it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.plugins import PluginManager

FAILS = """
    def reciprocal(x):
        return 1 / x

    flow = sw.Pipeline("fails")
    flow.from_collection([2, 0]).map(reciprocal).print()
"""


def told(result: Any) -> str:
    assert result.exit_code == 1, result.output
    closing, rest = result.stderr.split("\n", 1)
    assert closing.startswith("fails: failed after ")
    return str(rest)


def test_a_function_that_fails_is_shown_with_its_own_frames_and_notes(write: Any, sluiceway: Any) -> None:
    write("job.py", FAILS)
    text = told(sluiceway("run", "job.py"))
    assert text.startswith('Traceback (most recent call last):\n  File "job.py", line 4, in reciprocal\n')
    assert "    return 1 / x\n" in text
    assert "ZeroDivisionError: division by zero\nin step 'map(reciprocal)' of " in text
    assert text.endswith("record: 0\n")
    assert text.count("File ") == 1


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_the_engines_frames_come_on_demand(
    write: Any, sluiceway: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("job.py", FAILS)
    if how == "environment":
        monkeypatch.setenv("SLUICEWAY_TRACEBACK", "1")
    text = told(sluiceway("run", "job.py", *(["--traceback"] if how == "flag" else [])))
    assert "/sluiceway/runtime/" in text
    assert "<sluiceway: map(reciprocal)" in text
    assert "in reciprocal" in text


def test_a_builtin_that_fails_has_no_frame_and_is_still_the_users(write: Any, sluiceway: Any) -> None:
    write("job.py", "flow = sw.Pipeline('fails')\nflow.from_collection(['1', 'x']).map(int).print()")
    text = told(sluiceway("run", "job.py"))
    assert text.startswith("ValueError: invalid literal for int() with base 10: 'x'\nin step 'map(int)' of ")


def test_causes_are_cleared_of_engine_frames_too(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        def look_up(x):
            return {}[x]

        def fail(x):
            inner = sw.Pipeline("inner")
            inner.from_collection([x]).map(look_up).print()
            try:
                inner.run()
            except KeyError as error:
                raise RuntimeError("cannot look up") from error

        flow = sw.Pipeline("fails")
        flow.from_collection([1]).map(fail).print()
        """,
    )
    text = told(sluiceway("run", "job.py"))
    assert "KeyError: 1\n" in text
    assert "\n\nThe above exception was the direct cause of the following exception:\n" in text
    assert "sluiceway/" not in text
    assert "in look_up" in text


def test_what_a_connector_says_of_the_system_needs_no_traceback(write: Any, sluiceway: Any, place: Path) -> None:
    (place / "out").write_text("a file")
    write("job.py", "flow = sw.Pipeline('fails')\nflow.from_collection(['x']).sink('files', directory='out/sub')")
    text = sluiceway("run", "job.py").stderr
    assert "\nerror: cannot write to " in text
    assert "Traceback" not in text


def test_what_a_connector_says_of_a_library_needs_no_traceback(write: Any, sluiceway: Any) -> None:
    pytest.importorskip("sqlalchemy", reason="not installed: pip install 'sluiceway[sql]'")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    write(
        "job.py",
        """
        url = "postgresql+psycopg://u@127.0.0.1:1/x"
        flow = sw.Pipeline("fails")
        flow.from_collection([{"a": 1}]).sink("sql", database=url, table="t", columns=["a"])
        """,
    )
    text = sluiceway("run", "job.py").stderr
    assert "\nerror: cannot connect to write table 't' of postgresql+psycopg://u@127.0.0.1:1/x: " in text
    assert "Traceback" not in text


def test_what_the_users_code_calls_is_shown_and_a_plugin_in_between_is_not(
    write: Any, sluiceway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = PluginManager()
    monkeypatch.setattr("sluiceway.plugins.manager._default", manager)
    write("calls_back/__init__.py", "def passed(fn): return lambda x: fn(x)", head="")
    write(
        "job.py",
        """
        import json
        from calls_back import passed

        def parse(text):
            return json.loads(text)

        flow = sw.Pipeline("fails")
        flow.from_collection(["{"]).map(passed(parse)).print()
        """,
    )
    monkeypatch.syspath_prepend(".")
    try:
        manager.register(import_module("calls_back"), "calls back")
        text = told(sluiceway("run", "job.py"))
    finally:
        sys.modules.pop("calls_back", None)
    assert "in parse\n" in text
    assert "json/decoder.py" in text
    assert "calls_back" not in text.partition("in step")[0]


def test_our_own_error_is_a_paragraph_with_its_notes(write: Any, sluiceway: Any) -> None:
    write("job.py", "flow = sw.Pipeline('fails')\nflow.from_collection([3]).flat_map(lambda x: x).print()")
    text = told(sluiceway("run", "job.py"))
    lines = text.splitlines()
    assert lines[0].startswith("error: the function of step ")
    assert "returned 3 (int), which cannot be iterated over" in lines[0]
    assert lines[1].startswith("  in step ")
    assert lines[-1] == "  record: 3"
    assert "Traceback" not in text
    assert "Traceback" in told(sluiceway("run", "job.py", "--traceback"))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('while loading')", "RuntimeError: while loading"),
        ("def flow(): raise RuntimeError('while making')", "RuntimeError: while making"),
    ],
)
def test_code_that_fails_before_the_job_is_the_users_too(write: Any, sluiceway: Any, code: str, says: str) -> None:
    write("job.py", code)
    for command in ("run", "check", "explain"):
        result = sluiceway(command, "job.py")
        assert result.exit_code == 1
        assert says in result.stderr
        assert 'File "job.py", line 2' in result.stderr
        assert "/sluiceway/" not in result.stderr
        assert "a fault inside" not in result.stderr
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("command", "code", "exit_code", "text"),
    [
        ("run", "sys.exit(9)", 9, ""),
        ("check", "sys.exit('no input')", 1, "no input"),
        ("run", "sys.exit()", 2, "which does not run here"),
        ("run", "exit()", 2, "error: job.py:4 exits"),
        ("check", "sys.exit(False)", 2, "which does not run here"),
        ("explain", "def flow(): sys.exit(0)", 2, "which does not run here"),
        ("check", "argparse.ArgumentParser().exit()", 2, "which does not run here"),
    ],
)
def test_a_program_that_exits_by_itself_is_no_success(
    write: Any, start: Any, command: str, code: str, exit_code: int, text: str
) -> None:
    write("job.py", f"import argparse\nimport sys\n{code}\nflow = sw.Pipeline() if 'flow' not in dir() else flow")
    process = start(command, "job.py")
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == exit_code, said
    assert "while job.py is loaded, before a pipeline was found" in said
    assert text in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(["--help"], 0), (["-h"], 0), (["--release"], 0), (["--unknown"], 2)],
)
def test_an_argument_parser_of_a_program_ends_it_as_always(
    write: Any, sluiceway: Any, arguments: list[str], exit_code: int
) -> None:
    write(
        "job.py",
        """
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--release", action="version", version="1")
        parser.parse_args()
        flow = sw.Pipeline()
        """,
    )
    result = sluiceway("check", "job.py", "--", *arguments)
    assert result.exit_code == exit_code
    assert "before a pipeline was found" not in result.stderr


def test_an_exception_of_the_users_that_is_none_of_pythons_shows_no_engine(write: Any, start: Any) -> None:
    write("job.py", "class Own(BaseException): pass\nraise Own('mine')")
    process = start("check", "job.py")
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 1
    assert "Own: mine" in said
    assert "/sluiceway/" not in said


def test_null_bytes_in_a_program(place: Path, sluiceway: Any) -> None:
    (place / "job.py").write_bytes(b"import sluiceway as sw\n\0")
    result = sluiceway("check", "job.py")
    assert result.exit_code == 1
    assert 'File "job.py", line 2' in result.stderr
    assert "null bytes" in result.stderr
    assert "/sluiceway/" not in result.stderr


def test_the_name_of_a_file_may_have_a_colon(place: Path, sluiceway: Any) -> None:
    text = "import sluiceway as sw\nflow = sw.Pipeline()\nflow.from_collection([1]).uid('n').print()\n"
    (place / "a:b.py").write_text(text)
    for target in ("a:b.py", "a:b.py:flow"):
        result = sluiceway("check", target)
        assert result.exit_code == 0, result.stderr


def test_a_fault_of_ours_says_so_and_shows_everything(
    write: Any, sluiceway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluiceway.api import Pipeline

    def broken(self: Any, *_: Any) -> Any:
        return {}["broken"]

    monkeypatch.setattr(Pipeline, "prepare", broken)
    # As if this file were none of the user's.
    monkeypatch.setattr("sluiceway.runtime.failures.users_frames._STANDARD", os.path.dirname(__file__))
    write("job.py", "flow = sw.Pipeline()")
    result = sluiceway("run", "job.py")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: a fault inside Sluiceway or a plugin, not in the pipeline's own code:\nTraceback"
    )
    assert "in broken" in result.stderr


def test_an_error_on_a_worker_is_told_once_without_the_engines_frames(write: Any, start: Any) -> None:
    write(
        "wrong.py",
        """
        flow = sw.Pipeline("wrong")
        flow.from_collection([1, 0]).map(lambda v: 1 // v).print()
        """,
    )
    run = ("run", "-q", "--workers", "1")
    _, told = start(*run, "--restart", "fixed-delay:1:0ms", "wrong.py").communicate(timeout=PATIENT_S)
    told = told[told.index("in a worker process") :]
    assert told.count("ZeroDivisionError") == 1
    assert told.count('File "') == 1
    assert "wrong.py" in told
    assert told.count("record: 0") == 1
    assert told.splitlines()[-1].startswith("the job is not restarted: 1 restart")
    _, told = start(*run, "--traceback", "wrong.py").communicate(timeout=PATIENT_S)
    assert os.path.join("runtime", "task", "task.py") in told


def test_a_function_that_leaves_with_code_0_fails_the_job(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        import sys

        def leave(x):
            sys.exit(0)

        flow = sw.Pipeline("fails")
        flow.from_collection([7]).map(leave).print()
        """,
    )
    text = told(sluiceway("run", "job.py"))
    assert "in leave\n    sys.exit(0)" in text
    assert "the function of step 'map(leave)' raised SystemExit(0), which is meant to end a process" in text
    assert text.endswith("record: 7\n")


def test_a_large_text_and_circular_causes_are_shown_in_bounds(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        def fail(x):
            error, other = ValueError("x" * (16 << 20)), ValueError("other")
            error.__cause__, other.__cause__ = other, error
            raise error

        flow = sw.Pipeline("fails")
        flow.from_collection([7]).map(fail).print()
        """,
    )
    text = told(sluiceway("run", "job.py"))
    assert len(text) < 20_000
    assert "ValueError: other\n" in text
    assert "xxx... (16,777,2" in text
    assert text.endswith("record: 7\n")


def test_the_line_that_has_used_state_wrongly_is_shown(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        class Counts(sw.ProcessFunction):
            def open(self, context):
                self.count = context.get_state(sw.ValueStateDescriptor("count", int))

            def process_element(self, value, ctx):
                return [self.count.value()]

        flow = sw.Pipeline("fails")
        flow.from_collection([7]).process(Counts()).print()
        """,
    )
    text = told(sluiceway("run", "job.py"))
    assert "get_state(sw.ValueStateDescriptor" in text
    assert "sluiceway/" not in text
