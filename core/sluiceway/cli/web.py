"""``sluiceway web``."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from sluiceway.cli.web_options import options_of, web_options

__all__ = ["web"]


@click.command(short_help="Serve the web interface of the running cluster.")
@web_options
def web(**given: Any) -> None:
    """Serve the web interface and the REST API of the running cluster until Ctrl-C or SIGTERM.

    The printed link has the token. It is another one each time.
    """
    from sluiceway.cli.manager import manager
    from sluiceway.cli.web_interface import link
    from sluiceway.entrypoint.webserver import make_server
    from sluiceway.runtime.cluster.client_monitor import ClientMonitor

    options = options_of(**given)
    server = make_server(manager())
    monitor = ClientMonitor()
    monitor.cluster()  # none is running: that is said at once
    url = server.open(monitor, options)
    old = signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    try:
        click.echo(f"web interface: {link(url, options.token)}")
        sys.stdout.flush()
        server.serve()
    finally:
        signal.signal(signal.SIGTERM, old)
        monitor.close()
