"""Outside view of a job of ``sluiceway run``: web interface while it runs, record in the job store afterwards."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

from sluiceway import exit_codes
from sluiceway.cli.errors import report
from sluiceway.cli.output import is_broken_pipe, say

if TYPE_CHECKING:
    from sluiceway.config.settings import Resolved
    from sluiceway.engine import Job
    from sluiceway.monitoring.web_server import WebOptions

__all__ = ["Observation", "observed"]

_LOOK_S: Final = 0.5
"""Longest time in seconds until a signal is heard that has not interrupted a wait."""


class Observation(msgspec.Struct, frozen=True):
    """Options of it.

    Attributes:
        history: directory in which the job leaves a record; None: none.
        web: options of the web server; None: there is none.
        stay: keep the web server after the end of the job, until Ctrl-C or SIGTERM.
        resolved: options of the run, which the web server shows with their origins.
    """

    history: str | None = None
    web: WebOptions | None = None
    stay: bool = False
    resolved: Resolved | None = None


@contextmanager
def observed(
    job: Job, name: str, observation: Observation, *, as_json: bool, quiet: bool
) -> Iterator[threading.Event]:
    """Have a job seen while it runs in this context, and afterwards if that is wanted.

    Gives an event to set where nothing is to stay after the end of the job.

    Raises:
        ConfigurationError: the web server cannot be started, or the directory of records cannot be written.
        click.exceptions.Exit: the job has failed, and its error was shown before the pages stayed.
    """
    over = threading.Event()
    with ExitStack() as stack:
        record = stack.enter_context(ExitStack())
        if observation.history is not None:
            from sluiceway.cli.job_record import recorded

            record.enter_context(recorded(job, name, observation.history))
        if observation.web is not None:
            stack.enter_context(_exit_on_sigterm())
            from sluiceway.cli.web_interface import web_interface
            from sluiceway.monitoring.configuration import configured

            options = [] if observation.resolved is None else configured(observation.resolved)
            tell = _tell_link_as_json if as_json else _tell_link
            server = stack.enter_context(web_interface(job, name, observation.web, tell, options))
            if observation.stay:
                stack.enter_context(_staying(over, quiet or as_json))
            # Called before the wait: while the pages stay, they show the job as ended.
            stack.callback(server.job_ended)
        # Written before the wait, too: a record has the time at which the job has ended.
        stack.push(record.pop_all())
        yield over


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM in this context, where the job does not handle it: before its start.

    What was started for the job by then is ended, and its directory removed.
    """

    def handle(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # another one would interrupt the removal
        raise SystemExit(exit_codes.TERMINATED)

    # Python lets no other thread set handlers of signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _tell_link(link: str) -> None:
    say(f"web interface: {link}", err=True)


def _tell_link_as_json(link: str) -> None:
    say(json.dumps({"event": "web", "url": link}), err=True)


@contextmanager
def _staying(over: threading.Event, quiet: bool) -> Iterator[None]:
    """Wait at the end of this context. The error that a job has ended with is shown before."""
    try:
        yield
    except Exception as error:
        code = exit_codes.BROKEN_PIPE
        with _set_on_sigterm(over):  # the job has failed, whenever the signal comes
            if not is_broken_pipe(error):
                code = report(error, click.get_current_context())
            _wait(over, quiet)
        raise click.exceptions.Exit(code) from None
    with _set_on_sigterm(over):
        _wait(over, quiet)


@contextmanager
def _set_on_sigterm(over: threading.Event) -> Iterator[None]:
    old = signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _wait(over: threading.Event, quiet: bool) -> None:
    """Wait for the event or Ctrl-C."""
    if over.is_set():
        return
    if not quiet:
        say("the job has ended; Ctrl-C ends the web interface", err=True)
    with suppress(KeyboardInterrupt):
        while not over.wait(_LOOK_S):  # a signal just before the wait does not interrupt it
            pass
