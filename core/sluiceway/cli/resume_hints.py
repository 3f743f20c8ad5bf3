"""Hints about checkpoints of earlier runs that a job can resume from."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sluiceway.cli.output import say
from sluiceway.config.settings import Settings
from sluiceway.errors import SluicewayError
from sluiceway.util.redaction import redact

__all__ = ["resumed", "tell_of_checkpoint", "tell_where_to_go_on"]


def resumed(settings: Settings, job_name: str, *, quiet: bool = False) -> Settings:
    """Return the options with the checkpoint that the job resumes from, and print its place on stderr.

    Micro-batches resume in the directory of their run, which their engine looks for.

    Args:
        settings: the options of the run; returned as they are without ``resume``.
        job_name: the pipeline's.
        quiet: say nothing.

    Raises:
        CheckpointError: the newest checkpoint of the job cannot be read.
    """
    place = settings.checkpoints
    if not settings.resume or place is None:
        return settings
    from sluiceway.cli.manager import manager

    if settings.engine != "local" and not settings.hosted:
        if not quiet:
            shown = _newest_run(settings, place, job_name, unfinished=False)
            told = f"resuming {job_name!r} in {shown}" if shown else _begins(job_name, place, "run")
            say(redact(told), err=True)
        return settings
    from sluiceway.runtime.jobmanager.newest_checkpoint import find_resumable

    open_storage = manager().checkpoint_storage
    found = find_resumable(open_storage(place), job_name, open_storage)
    if found is None:
        if not quiet:
            say(redact(_begins(job_name, place, "checkpoint")), err=True)
        return replace(settings, resume=False)
    if not quiet:
        what = (
            f"{found.metadata.kind} {found.metadata.checkpoint_id}, of {_shown_time(found.metadata.completed_ms)}"
        )
        over = ", the last one of a finished run" if found.is_final else ""
        say(redact(f"resuming {job_name!r} from {what}{over}: {found.location}"), err=True)
    return replace(settings, from_checkpoint=found.location, resume=False)


def _begins(job_name: str, place: str, what: str) -> str:
    return f"found no {what} of {job_name!r} in {place} to resume from; starting from the beginning"


def _shown_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def tell_of_checkpoint(settings: Settings, job_name: str) -> None:
    """Print on stderr that a checkpoint of an unfinished earlier run exists, and how to restore it.

    Nothing is printed for a run that resumes from one, or keeps none.

    Args:
        settings: the options of the run.
        job_name: the pipeline's.
    """
    if settings.checkpoints is None or settings.from_checkpoint is not None or settings.resume:
        return
    if settings.engine != "local" and not settings.hosted:
        _tell_of_run(settings, settings.checkpoints, job_name)
        return
    from sluiceway.cli.manager import manager
    from sluiceway.runtime.jobmanager.newest_checkpoint import find_resumable

    open_storage = manager().checkpoint_storage
    try:
        found = find_resumable(open_storage(settings.checkpoints), job_name, open_storage)
    except (SluicewayError, OSError):
        return  # the run itself will say what is wrong there
    if found is None or found.is_final:
        return
    newest = found.metadata
    say(
        f"found {newest.kind} {newest.checkpoint_id} of an earlier run of {job_name!r}, of "
        f"{_shown_time(newest.completed_ms)}; starting from the beginning. To resume from it: --from "
        f"{redact(found.location)}",
        err=True,
    )


def tell_where_to_go_on(settings: Settings, job_name: str) -> None:
    """Print on stderr how to resume a cancelled run in micro-batches; nothing for other runs.

    Args:
        settings: the options of the run.
        job_name: the pipeline's.
    """
    place = settings.from_checkpoint or settings.checkpoints
    if place is None or settings.engine == "local" or settings.hosted:
        return
    shown = _newest_run(settings, place, job_name)
    if shown:
        say(redact(f"to resume this run: --from {shown}"), err=True)


def _newest_run(settings: Settings, place: str, job_name: str, *, unfinished: bool = True) -> str:
    """Return the path or URL of the newest run in micro-batches; empty if none exists or it has finished."""
    from sluiceway.cli.manager import manager
    from sluiceway.runtime.microbatch.run_directory import find_runs, is_finished

    try:
        storage = manager().checkpoint_storage(place)
        mine = [run for run in find_runs(storage) if (run.job, run.engine) == (job_name, settings.engine)]
        if not mine or (unfinished and is_finished(storage, mine[-1])):
            return ""
    except (SluicewayError, OSError):
        return ""  # the run itself says what is wrong there
    return storage.shown(mine[-1].directory) if mine[-1].directory else storage.location


def _tell_of_run(settings: Settings, place: str, job_name: str) -> None:
    shown = _newest_run(settings, place, job_name)
    if not shown:
        return
    say(
        f"found an unfinished earlier run of {job_name!r}; starting from the beginning."
        f" To resume it: --from {redact(shown)}",
        err=True,
    )
