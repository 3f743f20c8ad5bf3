"""Options and commands as people who come from Flink type them: they work, or are told what works here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

from sluiceway.cli.app import COMMANDS, app
from sluiceway.cli.habits import COMMANDS as OTHER_COMMANDS
from sluiceway.cli.habits import translated
from sluiceway.cli.jobs import id_among
from sluiceway.errors import ConfigurationError
from sluiceway.monitoring.infos import JobInfo

JOB = """
    import sys

    flow = sw.Pipeline("numbers")
    flow.from_collection(sys.argv[1:] or ["none"]).print()
"""


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("run -d job.py", "no option -d: sluiceway submit TARGET"),
        ("run --detached job.py", "no option --detached: sluiceway submit TARGET"),
        ("run -p 2 -c Words job.py", "no option -c: name the pipeline with the target: FILE.py:NAME"),
        ("run -py job.py", "no option -py: the target is the file itself: sluiceway run FILE.py"),
        ("run -pym words", "no option -pym: name the pipeline with the target"),
        ("run -m localhost:8081 job.py", "no option -m: sluiceway run needs no cluster"),
        ("submit -Dparallelism.default=2 job.py", "no option -Dparallelism.default: settings are options"),
        ("run quiet.py -d", "In place of -d: sluiceway submit TARGET"),
        ("run quiet.py -s kept", "In place of -s: --from."),
        ("info job.py", "no command 'info'. Did you mean 'sluiceway explain'?"),
        ("status", "no command 'status'. Did you mean 'sluiceway cluster status'?"),
        (
            "cancel -s kept numbers-1",
            "no option -s: to end a job with a savepoint: sluiceway stop JOB --savepoint",
        ),
        ("stop -d numbers-1", "no option -d: without --savepoint, sluiceway stop JOB ends the sources"),
        ("savepoint -d kept", "no option -d: to delete a savepoint: sluiceway savepoint delete PATH"),
        ("savepoint creat numbers-1", "Did you mean 'create'?"),
        ("run --paralelism 2 job.py", "Did you mean"),
    ],
)
def test_what_works_in_another_way_is_told(sluiceway: Any, write: Any, typed: str, told: str) -> None:
    write("job.py", JOB)
    write("quiet.py", "flow = sw.Pipeline()\nflow.from_collection([1]).print()")
    result = sluiceway(*typed.split())
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_the_commands_that_are_named_exist(sluiceway: Any) -> None:
    assert not OTHER_COMMANDS.keys() & COMMANDS.keys()
    for command in set(OTHER_COMMANDS.values()):
        assert sluiceway(*command.split(), "--help").exit_code == 0


@pytest.mark.parametrize("typed", ["-v", "--version"])
def test_version_is_an_option_too(sluiceway: Any, typed: str) -> None:
    result = sluiceway(typed)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"sluiceway {metadata.version('sluiceway')} (Python ")


def test_options_behind_the_target_are_the_scripts(sluiceway: Any, write: Any) -> None:
    write("job.py", JOB)
    result = sluiceway("run", "-q", "-p", "1", "job.py", "-d", "-s", "kept", "-c")
    assert (result.exit_code, result.stdout) == (0, "-d\n-s\nkept\n-c\n"), result.stderr


def test_run_begins_with_a_savepoint(sluiceway: Any, write: Any, place: Path) -> None:
    write("job.py", "flow = sw.Pipeline('n')\nflow.from_collection(range(3)).uid('n').print().uid('out')")
    assert sluiceway("run", "-q", "--checkpoints", "kept", "--checkpoint-interval", "1h", "job.py").exit_code == 0
    for typed in (["-s", "kept"], ["-s=kept"], ["--fromSavepoint", "kept"]):
        again = sluiceway("run", "-q", *typed, "job.py")
        assert (again.exit_code, again.stdout) == (0, ""), again.stderr


def test_options_of_flink_become_ours_before_the_target() -> None:
    command = app.get_command(click.Context(app), "run")
    assert command is not None
    typed = ["-q", "-p", "-s", "-n", "--from=x", "-s", "kept", "job.py", "-s", "-n", "-d"]
    wanted = ["-q", "-p", "-s", "--allow-dropped-state", "--from=x", "--from", "kept", "job.py", "-s", "-n", "-d"]
    assert translated(click.Context(command), typed) == wanted, "and what another option has as its value stays"


# ---- jobs by their names ------------------------------------------------------------------------------------


def job(name: str, number: int, status: str = "running") -> JobInfo:
    return JobInfo(f"{name}-{number}", name, status, 0, 0, 1, 0, 0, "", 0, [])


def test_a_job_goes_by_its_id_or_by_a_name_that_is_its_own() -> None:
    jobs = [job("words", 1, "finished"), job("words", 2), job("words-1", 3), job("old", 4, "failed")]
    assert id_among(jobs, "words-1") == "words-1", "an id comes before a name"
    assert id_among(jobs, "words-2") == "words-2"
    assert id_among(jobs, "words") == "words-2", "of those that have not ended"
    assert id_among(jobs, "old") == "old-4"


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        (
            [job("words", 1), job("words", 2, "waiting")],
            r"2 jobs 'words': .*words-1 \(running\), words-2 \(waiting\)",
        ),
        ([job("words", 1, "failed"), job("words", 2, "finished")], r"words-1 \(failed\), words-2 \(finished\)"),
        (
            [job("words", n, "failed") for n in range(12)],
            r"12 jobs 'words': .* of them, words-2 \(failed\), .*words-11 \(failed\), and 2 others$",
        ),
        ([job("word", 1)], "no job 'words': sluiceway list shows which there are. Did you mean 'word'"),
        ([], "no job 'words': sluiceway list shows which there are"),
    ],
)
def test_names_of_several_jobs_and_of_none_are_refused(jobs: list[JobInfo], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        id_among(jobs, "words")


def test_jobs_of_a_cluster_by_name(cluster: Any, write: Any, place: Path) -> None:
    write("job.py", "flow = sw.Pipeline('endless')\nflow.generate(rate=1000).uid('n').print().uid('out')")
    assert cluster("cluster", "start", "--workers", "1", "--slots", "1").returncode == 0
    assert cluster("submit", "--checkpoint-interval", "50ms", "job.py").stdout == "endless-1\n"
    cluster.comes_to_be("endless-1", "running")
    assert [j["job"] for j in cluster.json("list", "endless")] == ["endless-1"]
    taken = cluster("savepoint", "endless", "kept")
    assert taken.returncode == 0, taken.stderr
    assert Path(taken.stdout.strip()).parent == place / "kept"
    assert cluster("checkpoints", "endless").returncode == 0
    assert cluster("top", "endless", "--once").returncode == 0
    assert "endless-1 'sink(PrintSink)' 1/1" in cluster("logs", "endless").stdout

    assert cluster("submit", "job.py").stdout == "endless-2\n"
    assert [j["job"] for j in cluster.json("list", "-r")] == ["endless-1"]
    assert [j["job"] for j in cluster.json("list", "-s")] == ["endless-2"]
    assert len(cluster.json("list", "-r", "-s")) == len(cluster.json("list", "-a", "-r")) == 2
    for command in ("cancel", "stop", "savepoint", "top", "checkpoints", "logs", "list"):
        both = cluster(command, "endless")
        assert both.returncode == 2, (command, both.stderr)
        assert "there are 2 jobs 'endless': give the id of one of them, endless-1" in both.stderr
        nobody = cluster(command, "nobody")
        assert nobody.returncode == 2, (command, nobody.stderr)
    assert cluster("cancel", "endless-2").returncode == 0
    cluster.ended("endless-2")
    stopped = cluster("stop", "-p", "end", "endless")
    assert stopped.returncode == 0, stopped.stderr
    assert Path(stopped.stdout.strip()).parent == place / "end"
    assert cluster("stop", "endless-1", "--savepointPath", "end").returncode != 0
    assert cluster.json("list", "-r") == []
