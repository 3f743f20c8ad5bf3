"""``sluiceway dlq``: the records that steps have skipped, to be seen and to be processed after all."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from sluiceway import exit_codes
from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.cli.run import run_job
from sluiceway.cli.target import load_pipeline
from sluiceway.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluiceway.functions import DeadLetter

__all__ = ["dlq"]


@click.group(cls=Group)
def dlq() -> None:
    """Show and replay skipped records."""


@dlq.command()
@click.argument("directory")
@click.option("--step", metavar="NAME", help="Name of the step; default: all steps.")
@click.option(
    "--limit", type=click.IntRange(0), default=100, help="Largest number of records; 0 shows all. Default: 100."
)
@click.option("--traceback", is_flag=True, help="Show the tracebacks of the exceptions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def show(directory: str, step: str | None, limit: int, traceback: bool, as_json: bool) -> None:
    """Show the skipped records in DIRECTORY, oldest first. Nothing is unpickled."""
    from sluiceway.connector.lib import dead_letter_files, read_dead_letters

    letters = [
        letter for letter in read_dead_letters(dead_letter_files(directory)) if step is None or letter.step == step
    ]
    letters.sort(key=lambda letter: letter.time_ms)
    shown = list(islice(letters, limit or None))
    if as_json:
        for letter in shown:
            say(json.dumps(_facts(letter)))
        return
    for letter in shown:
        say(f"{letter.step} of {letter.job}, subtask {letter.subtask + 1}, {_time(letter.time_ms)}")
        say(f"  record:    {letter.record}")
        if letter.key is not None:
            say(f"  key:       {letter.key}")
        if letter.timestamp is not None:
            say(f"  timestamp: {letter.timestamp} ms")
        for line in (letter.traceback if traceback else letter.error).splitlines():
            say(f"  {line}")
    more = "" if len(shown) == len(letters) else f", the first {len(shown)} of them shown"
    say(f"{_counted(len(letters))}{more}.")


def _facts(letter: DeadLetter) -> dict[str, object]:
    return {
        "job": letter.job,
        "step": letter.step,
        "uid": letter.uid,
        "subtask": letter.subtask,
        "attempt": letter.attempt,
        "time_ms": letter.time_ms,
        "record": letter.record,
        "key": letter.key,
        "timestamp": letter.timestamp,
        "error": letter.error,
        "traceback": letter.traceback,
        "replayable": letter.replayable,
    }


@click.argument("directory")
@click.option("--step", metavar="NAME", help="Name of the step; default: all steps.")
@click.option("--delete", is_flag=True, help="Delete the records from DIRECTORY when the job has finished.")
@click.option("--no-progress", is_flag=True, help="Do not show progress on stderr.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the closing line.")
@click.option("--json", "as_json", is_flag=True, help="Write progress and closing line to stderr as JSON objects.")
def _replay(
    request: Request,
    directory: str,
    step: str | None,
    delete: bool,
    no_progress: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Process the skipped records in DIRECTORY with the pipeline in TARGET.

    TARGET is as for 'sluiceway run'. Each record is processed from the step that skipped it; sources do not run.
    The records are unpickled, which can run any code: use only directories that your own jobs have written.
    """
    from sluiceway.api.replay import replaying
    from sluiceway.connector.lib import dead_letter_files, delete_dead_letters, read_dead_letters
    from sluiceway.engine import JobStatus
    from sluiceway.monitoring.losses import losses

    settings = request.resolved.settings
    for option in ("resume", "checkpoints"):
        if request.resolved.origins[option] == f"--{option}":
            raise click.UsageError(f"--{option} is for the job itself; records are replayed by a job of their own")
    # Configured ones are for the job itself, too: it would resume from the last checkpoint of its replay.
    settings = replace(settings, resume=False, checkpoints=None)
    if request.resolved.origins["metrics"] != "--metrics":
        # So are its reporters: their ports and files are the job's, which may run.
        settings = replace(settings, metrics=())
    plugins = manager()
    plugins.engine(settings.engine)
    files = dead_letter_files(directory)
    letters = list(read_dead_letters(files))
    with load_pipeline(request.target, request.arguments) as pipeline:

        def is_meant(letter: DeadLetter) -> bool:
            return letter.job == pipeline.name and (step is None or letter.step == step)

        meant = [letter for letter in letters if is_meant(letter)]
        if not meant:
            raise ConfigurationError(_none_of(letters, directory, pipeline.name, step))
        # If none is left, the error of all of them says why.
        decoded = [letter for letter in meant if not letter.undecoded] or meant
        job = replaying(pipeline, decoded, settings).prepare(settings, plugins.services())
        code = run_job(job, job.run, settings, no_progress=no_progress, quiet=quiet, as_json=as_json)
    if job.status is JobStatus.CANCELED:
        click.get_current_context().exit(code or exit_codes.CANCELLED)
    if delete:
        delete_dead_letters(files, lambda letter: is_meant(letter) and not letter.undecoded)
    if quiet:
        return
    told = "replayed and deleted" if delete else "replayed; they are still there, as --delete was not given"
    # An unmended program would look like one that has processed them all.
    again = sum(loss.records for loss in losses(job.metrics()) if loss.reason == "dead letter")
    if again:
        kept = "put aside again" if settings.dead_letters else "skipped, as --dead-letters was not given"
        told += f"; {again:,} failed again and {'was' if again == 1 else 'were'} {kept}"
    if undecoded := len(meant) - len(decoded):
        told += f"; {undecoded:,} that a source could not decode cannot be replayed, and stay"
    say(f"{_counted(len(decoded))} {told}.", err=True)


dlq.add_command(pipeline_command("replay", "Process records that were skipped.")(_replay))


def _none_of(letters: Iterable[DeadLetter], directory: str, job: str, step: str | None) -> str:
    there = sorted({(letter.job, letter.step) for letter in letters})
    listed = ", ".join(f"step {name!r} of pipeline {of!r}" for of, name in there)
    wanted = f"pipeline {job!r}" if step is None else f"step {step!r} of pipeline {job!r}"
    return (
        f"there are no dead letters of {wanted} in {directory}, but of: {listed}"
        if there
        else (f"there are no dead letters in {directory}")
    )


def _counted(count: int) -> str:
    return f"{count} dead letter{'s' * (count != 1)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
