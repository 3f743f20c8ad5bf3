"""The record of a job that ``sluiceway run --history`` leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from sluiceway.cli.errors import warn
from sluiceway.errors import ConfigurationError

if TYPE_CHECKING:
    from sluiceway.engine import Job

__all__ = ["recorded"]


@contextmanager
def recorded(job: Job, name: str, directory: str) -> Iterator[None]:
    """Write a record of the job when it has ended, whichever way.

    Args:
        job: runs in this context.
        name: name of the pipeline; the record has the local time in its own, too.
        directory: made if it is not there.

    Raises:
        ConfigurationError: the directory cannot be made or written.
    """
    from sluiceway.clock import SystemClock
    from sluiceway.engine import JobStatus
    from sluiceway.monitoring.job_history import JobHistory
    from sluiceway.runtime.cluster.job_infos import ended_job
    from sluiceway.util.private_files import make_private_directory

    try:
        make_private_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"--history {directory} cannot be made: {error.strerror or error}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--history {directory} cannot be written by this user")
    clock = SystemClock()
    started_ms = clock.now_ms()
    begun = datetime.fromtimestamp(started_ms / 1000)
    try:
        yield
    finally:
        if job.status is not JobStatus.CREATED:
            history = JobHistory(directory)
            stem = f"{name}-{begun:%Y%m%d-%H%M%S}-{started_ms % 1000:03}"
            job_id = stem if not history.has(stem) else f"{stem}-{os.getpid()}"
            try:
                history.add(ended_job(job, job_id, name, started_ms, clock.now_ms()))
            except OSError as error:
                warn(f"no record of the job was written in {directory}: {error.strerror or error}")
