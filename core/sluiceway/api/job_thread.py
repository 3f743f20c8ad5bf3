"""Threads in which jobs run beside the program, and their end when the program ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Final

from sluiceway.engine import Job

__all__ = ["start_job_thread"]

_LONGEST_S: Final = 5.0
"""Time that a program which ends waits for the ends of its jobs."""

_running: Final[dict[Thread, Job]] = {}


def start_job_thread(job: Job, run: Callable[[], None], name: str) -> Thread:
    """Start the thread of a job.

    If the program ends while the job runs, the job is cancelled, and its end awaited for some seconds: its tasks
    close what they have open, and no native code runs in a process that is being taken down.

    Args:
        job: the job.
        run: runs it. It must not raise.
        name: the pipeline's name.
    """

    def work() -> None:
        try:
            run()
        finally:
            _running.pop(thread, None)

    # A daemon: a job that does not end must not keep the program from ending.
    thread = Thread(target=work, name=f"sluiceway-job-{name}", daemon=True)
    _running[thread] = job
    thread.start()
    return thread


def _end_all() -> None:
    ends = monotonic() + _LONGEST_S
    jobs = dict(_running)
    for job in jobs.values():
        with suppress(Exception):  # one that cannot be cancelled must not keep the others from it
            job.cancel()
    for thread in jobs:
        if thread.is_alive():
            thread.join(max(0.0, ends - monotonic()))


atexit.register(_end_all)
# A forked process has the list, but not the jobs.
os.register_at_fork(after_in_child=_running.clear)
