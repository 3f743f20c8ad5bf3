"""``sluiceway run``: finding the pipeline, whose option is whose, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COUNT = """
    flow = sw.Pipeline("count")
    flow.from_collection(["to be", "or not to be"]).flat_map(str.split).key_by(lambda w: w).count().print()
"""
FACTORY = """
    def flow(arguments):
        flow = sw.Pipeline("arguments")
        flow.from_collection(arguments or ["none"]).print()
        return flow
"""
READS_ARGV = """
    import sys

    flow = sw.Pipeline("argv")
    flow.from_collection(sys.argv[1:]).print()
"""


def printed(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


# -- finding the pipeline -----------------------------------------------------------------------------------


def test_a_file_is_run_and_only_the_results_are_on_standard_output(write: Any, sluiceway: Any) -> None:
    write("count.py", COUNT)
    result = sluiceway("run", "count.py")
    assert sorted(printed(result)) == sorted(
        ["('to', 1)", "('be', 1)", "('or', 1)", "('not', 1)", "('to', 2)", "('be', 2)"]
    )
    assert result.stderr.startswith("count: finished after ")
    assert ", 2 records in" in result.stderr
    assert ", 6 out\n" in result.stderr


def test_subtasks_that_share_a_core_are_warned_of_once(write: Any, sluiceway: Any) -> None:
    write("count.py", COUNT)
    said = sluiceway("run", "count.py", "--parallelism", "2").stderr
    assert said.count("[one-process]") == said.count("warning") == 1
    assert "'count' (count.py:" in said
    for flags in ([], ["--parallelism", "2", "--quiet"], ["--parallelism", "2", "--json"]):
        assert "warning" not in sluiceway("run", "count.py", *flags).stderr


@pytest.mark.parametrize(
    "target", ["jobs/three.py:second", "jobs.three:second", "jobs.three:Box.inner", "./jobs/three.py:make"]
)
def test_one_of_several_by_its_name(
    write: Any, sluiceway: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        "jobs/three.py",
        """
        first = sw.Pipeline("first")
        second = sw.Pipeline("second")
        second.from_collection([2]).print()

        class Box:
            inner = second

        def make():
            return second
        """,
    )
    try:
        assert printed(sluiceway("run", target)) == ["2"]
    finally:
        sys.modules.pop("jobs.three", None)
        sys.modules.pop("jobs", None)


def test_a_script_sees_the_world_as_if_it_had_been_started(write: Any, sluiceway: Any) -> None:
    write("deep/helper.py", "def double(x): return 2 * x")
    write(
        "deep/job.py",
        """
        import dataclasses, pickle, sys
        from helper import double

        @dataclasses.dataclass
        class Point:
            x: int

        assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
        assert Point.__annotations__ == {"x": int}, "compiled with another file's future imports"
        assert sys.argv == ["deep/job.py"], sys.argv
        assert __file__.endswith("/deep/job.py")
        flow = sw.Pipeline("world")
        flow.from_collection([Point(1), __name__]).map(lambda p: p if isinstance(p, str) else double(p.x)).print()
        if __name__ == "__main__":
            raise SystemExit("must not run by itself")
        """,
    )
    argv, path = list(sys.argv), list(sys.path)
    try:
        assert printed(sluiceway("run", "deep/job.py")) == ["2", "__sluiceway__"]
    finally:
        sys.modules.pop("helper", None)
    assert (sys.argv, sys.path) == (argv, path)
    assert "__sluiceway__" not in sys.modules


NOTHING = "there is no Pipeline at the top of the module; write flow = Pipeline(...), or a function flow()"


@pytest.mark.parametrize(
    ("code", "target", "says"),
    [
        ("", "job.py", f"job.py has no 'flow': {NOTHING}"),
        (
            "b = sw.Pipeline()\na = sw.Pipeline()",
            "job.py",
            "job.py has no 'flow': the Pipelines there are job.py:a, job.py:b; name one of them, or call",
        ),
        ("a = sw.Pipeline()", "job.py:b", "job.py has no 'b': the Pipeline there is job.py:a; name it like that"),
        ("flow = sw.Pipeline()", "job.py:b", "the Pipeline there is job.py:flow; name it like that\n"),
        (
            "flow = 7",
            "job.py",
            "'flow' in job.py is neither a Pipeline nor a function that returns one, but an object",
        ),
        ("def flow(): pass", "job.py", "flow() in job.py returned nothing, not a Pipeline"),
        ("def flow(): return 7", "job.py", "flow() in job.py returned an object of type int, not a Pipeline"),
        (
            "def flow(): return sw.Pipeline().from_collection([1]).print()",
            "job.py",
            "flow() in job.py returned a ",
        ),
        (
            "flow = sw.Pipeline().from_collection([1])",
            "job.py",
            "but a DataStream, which is a step of one; keep the",
        ),
        ("async def flow(): pass", "job.py", "flow() in job.py is an async function; it has to be a plain one"),
        (
            "def flow(a, b, *, c): pass",
            "job.py",
            "flow() in job.py asks for b, c: it may take one argument, the list",
        ),
        ("", "jbo.py", "there is no file jbo.py. Did you mean job.py?"),
        ("", "far/away.py", "there is no file far/away.py. There is no directory far either."),
        ("", "./", "./ is a directory: name a file in it, such as job.py"),
        ("", "folder", "folder is a directory: name a file in it\n"),
        ("", ".", ". is a directory: name a file in it, such as job.py"),
        ("", "x" * 300 + ".py", "x.py cannot be read: File name too long"),
        (
            "def build():\n    return sw.Pipeline('a')",
            "job.py",
            "build() makes one: have it return that, and name the function: job.py:build",
        ),
        (
            "def main():\n    made = sw.Pipeline('a')\n    made.run()",
            "job.py",
            "main() makes one: have it return that instead of running it, and name the function: job.py:main",
        ),
        (
            "if __name__ == '__main__':\n    flow = sw.Pipeline('a')\n    flow.run()",
            "job.py",
            'one is made under if __name__ == "__main__":, which does not run here: make it at the top of',
        ),
        (
            "",
            "absent:flow",
            "there is no module 'absent' here or on sys.path; for a file write its path: absent.py",
        ),
        ("", "absent.module", "there is no module 'absent' here or on sys.path"),
        ("", ":flow", "':flow' names no file: write FILE.py:flow or package.module:flow"),
        ("", "..:flow", ".. is a directory: name a file in it"),
    ],
)
def test_what_cannot_be_found_is_told_with_what_is_there(
    write: Any, sluiceway: Any, code: str, target: str, says: str
) -> None:
    write("job.py", code).with_name("folder").mkdir()
    result = sluiceway("run", target)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stdout == ""


def test_a_module_that_a_module_misses_is_the_users_own_error(write: Any, sluiceway: Any) -> None:
    write("lacking.py", "import no_such_library\nflow = sw.Pipeline()")
    for target in ("lacking.py", "lacking"):
        result = sluiceway("run", target)
        assert result.exit_code == 1
        assert "ModuleNotFoundError: No module named 'no_such_library'" in result.stderr
        assert "error:" not in result.stderr


@pytest.mark.parametrize("where", ["top", "factory"])
def test_a_script_that_runs_its_pipeline_itself_is_told_before_it_runs_twice(
    write: Any, sluiceway: Any, where: str
) -> None:
    code = "flow = sw.Pipeline('twice')\nflow.from_collection([1]).print()\nflow.run()\n"
    if where == "factory":
        code = "def make():\n" + "".join(f"    {line}\n" for line in code.splitlines()) + "    return flow\n"
    line = 4 if where == "top" else 5
    write("job.py", code)
    result = sluiceway("run", "job.py:make" if where == "factory" else "job.py")
    assert (result.exit_code, result.stdout, result.stderr) == (
        2,
        "",
        f"error: job.py:{line} runs pipeline 'twice' while it is only to be loaded: "
        'put that under if __name__ == "__main__":, which does not run here; or start the script by itself, '
        "with python job.py\n",
    )


def test_an_option_that_has_swallowed_the_target_is_named(write: Any, sluiceway: Any) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_collection([1]).print()")
    result = sluiceway("run", "-p", "job.py")
    assert result.exit_code == 2
    assert "-p takes a value, and job.py was taken for it" in result.stderr
    assert printed(sluiceway("run", "-p=2", "job.py")) == ["2> 1"]


def test_a_function_of_a_pipeline_may_run_another_one(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        def inner(x):
            flow = sw.Pipeline("inner")
            seen = flow.from_collection([x, x]).collect()
            flow.run()
            return list(seen)

        flow = sw.Pipeline("outer")
        flow.from_collection([1]).map(inner).print()
        """,
    )
    assert printed(sluiceway("run", "job.py")) == ["[1, 1]"]


@pytest.mark.parametrize(
    ("closed", "out"),
    [("2>&-", "1\n"), (">&-", ""), ("<&- 2>&-", "1\n"), ("<&- >&- 2>&-", "")],
)
def test_standard_streams_may_be_closed(write: Any, closed: str, out: str) -> None:
    write(
        "job.py",
        """
        import os, sys

        def number(record):
            print("seen", file=sys.stderr)
            os.write(2, b"written by a library")
            return record

        flow = sw.Pipeline("job")
        flow.from_collection([1]).map(number).print()
    """,
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "sluiceway", "run", "job.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, out), done.stderr


@pytest.mark.parametrize("options", [[], ["--resume", "--checkpoints", "kept", "--checkpoint-interval", "1h"]])
def test_a_full_disk_under_stderr_does_not_keep_a_job_from_running(write: Any, options: list[str]) -> None:
    write("job.py", "flow = sw.Pipeline('job')\nflow.from_collection([1, 2]).print()\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", "run", *options, "job.py"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert (done.stdout, done.returncode) == ("1\n2\n", 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["explain", "job.py"], ["--help"], ["run", "job.py"], ["check", "job.py"]])
def test_output_that_cannot_be_written_is_one_sentence(write: Any, words: list[str]) -> None:
    write("job.py", 'flow = sw.Pipeline("job")\nflow.from_collection([1]).print()')
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert "cannot print: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["explain", "job.py"], ["check", "job.py"]])
def test_output_in_an_encoding_without_its_characters_is_one_sentence(write: Any, words: list[str]) -> None:
    write("job.py", 'flow = sw.Pipeline("\u540d")\nflow.from_collection([1]).print()')
    done = subprocess.run(
        [sys.executable, "-m", "sluiceway", *words],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        encoding="latin-1",
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: cannot print: 'latin-1' codec can't encode character '\\u540d'")
    assert done.stderr.endswith("PYTHONIOENCODING=utf-8:backslashreplace makes it take every character\n")


# -- whose option is whose ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["job.py"], ["none"]),
        (["job.py", "--host", "there", "-x", "7"], ["--host", "there", "-x", "7"]),
        (["job.py", "--host=there", "plain"], ["--host=there", "plain"]),
        (["-q", "job.py", "--host", "h", "--parallelism", "1", "--port", "9"], ["--host", "h", "--port", "9"]),
        (["job.py", "a", "--", "--parallelism", "x", "--help"], ["a", "--parallelism", "x", "--help"]),
        (["--", "job.py", "--quiet"], ["--quiet"]),
        (["job.py", "-p1", "-h", "there"], ["-h", "there"]),
    ],
)
def test_options_after_the_target_that_are_not_ours_are_the_scripts(
    write: Any, sluiceway: Any, words: list[str], taken: list[str]
) -> None:
    write("job.py", FACTORY)
    assert printed(sluiceway("run", *words)) == taken


def test_a_script_may_read_them_from_sys_argv(write: Any, sluiceway: Any) -> None:
    write("job.py", READS_ARGV)
    assert printed(sluiceway("run", "job.py", "--host", "there")) == ["--host", "there"]


def test_a_script_may_parse_them(write: Any, sluiceway: Any) -> None:
    write(
        "job.py",
        """
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--count", type=int)
        flow = sw.Pipeline()
        flow.from_collection(range(parser.parse_args().count)).print()
        """,
    )
    assert printed(sluiceway("run", "job.py", "--count", "2")) == ["0", "1"]
    refused = sluiceway("run", "job.py", "--cuont", "2")
    assert refused.exit_code == 2
    assert "job.py: error: unrecognized arguments: --cuont 2" in refused.stderr
    helped = sluiceway("run", "job.py", "--", "--help")
    assert helped.exit_code == 0
    assert helped.stdout.startswith("usage: job.py [-h] [--count COUNT]")


def test_arguments_that_nothing_takes_are_an_error(write: Any, sluiceway: Any) -> None:
    write("job.py", COUNT)
    result = sluiceway("run", "job.py", "--paralelism", "2")
    assert result.exit_code == 2
    assert (
        "job.py takes no arguments of its own, and these are not options of sluiceway: --paralelism 2. "
        "Did you mean --parallelism? (A script may read sys.argv, or define flow(arguments).)"
    ) in result.stderr
    assert result.stdout == ""


def test_looking_at_the_name_of_the_script_takes_nothing(write: Any, sluiceway: Any) -> None:
    write("job.py", "import sys\nsys.argv[0]\n" + COUNT.replace("\n    ", "\n"))
    assert sluiceway("run", "job.py", "--what").exit_code == 2


def test_an_unknown_option_before_the_target_is_an_error(write: Any, sluiceway: Any) -> None:
    write("job.py", FACTORY)
    result = sluiceway("run", "--paralelism=2", "job.py")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "--paralelism" in result.stderr
    assert "--parallelism" in result.stderr
    assert "--quiet" not in result.stderr


# -- options ------------------------------------------------------------------------------------------------


def test_options_reach_the_job(
    write: Any, sluiceway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_sequence(1, 4).rebalance().map(str).print()")
    lines = printed(sluiceway("run", "job.py", "-p", "2", "--seed", "1", "--no-chaining", "--batch-size", "1"))
    assert sorted(line.partition("> ")[2] for line in lines) == ["1", "2", "3", "4"]
    assert {line[:3] for line in lines} == {"1> ", "2> "}
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", "metrics.jsonl")
    printed(sluiceway("run", "job.py", "--metrics", "log", "--metrics", "jsonl"))
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["records_out"] == 4


def test_environment_and_file_count_too(
    write: Any, sluiceway: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("job.py", "flow = sw.Pipeline()\nflow.from_sequence(1, 4).rebalance().map(str).print()")
    (place / "sluiceway.toml").write_text("parallelism = 'x'")
    result = sluiceway("run", "job.py")
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: parallelism = 'x' in {place}/sluiceway.toml is not a whole number from 1 to 32768\n",
    )
    monkeypatch.setenv("SLUICEWAY_PARALLELISM", "2")
    monkeypatch.setenv("SLUICEWAY_PARALELISM", "3")
    result = sluiceway("run", "job.py")
    assert any(line.startswith("2> ") for line in printed(result))
    assert result.stderr.startswith(
        "warning: SLUICEWAY_PARALELISM is not an option: did you mean SLUICEWAY_PARALLELISM?\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-p", "0"], "--parallelism='0' is not a whole number from 1 to 32768"),
        (["--engine", "storm"], "there is no engine 'storm'. Known: 'local', 'spark'"),
        (["--hosted"], "does not have workers on somebody else's executors (--hosted): it starts its own workers"),
        (
            ["--state-backend", "memroy"],
            "there is no state backend 'memroy'. Did you mean 'memory'? Known: 'filesystem', 'memory', 'rocksdb'",
        ),
        (
            ["--transport", "pigeon", "--workers", "1"],
            "there is no transport 'pigeon'. Known: 'local', 'shm'",
        ),
        (["--transport", "shm"], "and this job has none: leave transport at 'auto'"),
        (["--transport", "local", "--workers", "1"], "transport 'local' works inside one process only"),
        (["--restart", "again"], "there is no restart strategy 'again'"),
        (["--restart", "fixed-delay"], "Write fixed-delay:ATTEMPTS:DELAY"),
        (["--metrics", "lgo"], "there is no metrics reporter 'lgo'. Did you mean 'log'? Known: 'jsonl', 'log'"),
        (["--scheduler", "late"], "'late'"),
        (["--metrics", "jsonl"], "metrics reporter 'jsonl' needs a file: set SLUICEWAY_METRICS_FILE to its path"),
    ],
)
def test_a_bad_option_is_told_before_anything_runs(
    write: Any, sluiceway: Any, options: list[str], says: str
) -> None:
    write("job.py", COUNT)
    result = sluiceway("run", "job.py", *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stdout == ""


def test_an_unknown_engine_is_told_before_the_pipelines_own_code_runs(write: Any, sluiceway: Any) -> None:
    write("job.py", "raise RuntimeError('was loaded')")
    result = sluiceway("run", "job.py", "--engine", "storm")
    assert result.exit_code == 2
    assert result.stderr == "error: there is no engine 'storm'. Known: 'local', 'spark'\n"


def test_what_is_not_built_yet_is_not_in_the_help(sluiceway: Any) -> None:
    told = sluiceway("run", "--help").stdout
    assert "--parallelism" in told
    for hidden in ("pulsar",):
        assert hidden not in told.lower()


# -- exit codes and the closing line ------------------------------------------------------------------------


def test_quiet_says_nothing(write: Any, sluiceway: Any) -> None:
    write("job.py", COUNT)
    result = sluiceway("run", "job.py", "--quiet")
    assert len(printed(result)) == 6
    assert result.stderr == ""


def test_the_closing_line_as_json(write: Any, sluiceway: Any) -> None:
    write("job.py", COUNT)
    (line,) = sluiceway("run", "job.py", "--json").stderr.splitlines()
    told = json.loads(line)
    assert told.pop("elapsed_s") >= 0
    assert told == {
        "event": "summary",
        "job": "count",
        "status": "finished",
        "records_in": 2,
        "records_out": 6,
        "latency_ms": {},
    }


def test_a_pipeline_that_cannot_run_is_2(write: Any, sluiceway: Any) -> None:
    write("job.py", "flow = sw.Pipeline('idle')\nflow.from_collection([1]).map(str)")
    result = sluiceway("run", "job.py")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "sink" in result.stderr


def test_a_connector_that_cannot_reach_its_other_side_is_3(write: Any, sluiceway: Any, refusing_port: int) -> None:
    write(
        "job.py",
        f"flow = sw.Pipeline()\nflow.source('socket', host='127.0.0.1', port={refusing_port}).print()",
    )
    result = sluiceway("run", "job.py")
    assert result.exit_code == 3
    closing, error, *_ = result.stderr.splitlines()
    assert closing.startswith("pipeline: failed after ")
    assert error.startswith("error: ")
    assert f"127.0.0.1:{refusing_port}" in error


def test_an_empty_pipeline_is_told_what_it_lacks(write: Any, sluiceway: Any) -> None:
    write("job.py", "flow = sw.Pipeline('void')")
    result = sluiceway("run", "job.py")
    assert result.exit_code == 2
    assert "'void'" in result.stderr


@pytest.mark.parametrize("words", [["run", "--quiet", "--workers", "1"], ["check"]], ids=" ".join)
@pytest.mark.parametrize("module", ["random", "types"])
def test_a_file_beside_the_program_may_have_the_name_of_a_standard_module(
    write: Any, words: list[str], module: str
) -> None:
    write("job.py", "import sluiceway as sw\nflow = sw.Pipeline('a')\nflow.from_collection([7]).print()\n")
    write(f"{module}.py", "X = 1\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sluiceway", *words, "job.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_hides_a_standard_module_from_the_engine_is_named(write: Any) -> None:
    write("job.py", "import sluiceway as sw\nflow = sw.Pipeline('a')\nflow.from_collection([7]).print()\n")
    write("logging.py", "X = 1\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sluiceway", "check", "job.py"], capture_output=True, text=True, check=False
    )
    hiding = os.path.abspath("logging.py")
    assert done.stderr.startswith(
        f"error: {hiding} hides the module 'logging' of the standard library from what imports it: rename it\n"
    )
    assert "a fault inside" not in done.stderr
