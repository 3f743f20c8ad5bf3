"""``sluiceway web``."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from sluiceway.cli.output import say
from sluiceway.cli.web_options import options_of, submit_option, web_options
from sluiceway.errors import ConfigurationError, ConnectorError

if TYPE_CHECKING:
    from sluiceway.monitoring.monitor import Monitor

__all__ = ["web"]


@click.command(short_help="Serve pages about the running cluster or about ended jobs.")
@click.option(
    "--history",
    metavar="DIR",
    help="Show the jobs that have ended and left a record in DIR: that of 'run --history', or a job store.",
)
@click.option("--idle-timeout", metavar="TIME", help="End when nobody has looked for this time. Default: never.")
@submit_option
@web_options
def web(history: str | None, idle_timeout: str | None, **given: Any) -> None:
    """Serve the web interface and the REST API of the running cluster until Ctrl-C or SIGTERM.

    The printed link has the token. It is another one each time.
    """
    from dataclasses import replace

    from sluiceway.cli.manager import manager
    from sluiceway.cli.web_interface import link
    from sluiceway.config.settings import duration_ms
    from sluiceway.entrypoint.webserver import make_server

    if history is not None and given["web_submit"]:
        raise click.UsageError("--web-submit is for a running cluster: records of jobs take no programs")
    options = options_of(**given)
    if idle_timeout is not None:
        try:
            options = replace(options, idle_s=duration_ms(idle_timeout) / 1000)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--idle-timeout") from None
    if history is not None:
        options = replace(options, read_only=True)
    server = make_server(manager())
    monitor = _monitor(history)
    url = server.open(monitor, options)
    old = signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    try:
        say(f"web interface: {link(url, options.token)}")
        sys.stdout.flush()
        server.serve()
    finally:
        signal.signal(signal.SIGTERM, old)
        monitor.close()


def _monitor(history: str | None) -> Monitor:
    """Return the monitor of the running cluster or of a directory of records. Raises SluicewayError."""
    if history is not None:
        from sluiceway.monitoring.history_monitor import HistoryMonitor

        if not os.path.isdir(history):
            raise ConfigurationError(
                f"there is no directory {history!r}: give that of 'sluiceway run --history', or a job store"
            )
        return HistoryMonitor(history)
    from sluiceway.entrypoint.statereader import ProcessStateMonitor
    from sluiceway.runtime.cluster.client import job_store_directory
    from sluiceway.runtime.cluster.client_monitor import ClientMonitor

    monitor = ClientMonitor(state=ProcessStateMonitor())
    try:
        monitor.cluster()  # none is running: that is said at once
    except ConnectorError as error:
        store = job_store_directory()
        if store.is_dir():
            error.add_note(f"to look at jobs that have ended: sluiceway web --history {store}")
        raise
    return monitor
