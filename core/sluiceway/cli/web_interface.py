"""The web interface of one job, in a process of its own next to ``sluiceway run``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sluiceway.errors import ConfigurationError
from sluiceway.util.engine_processes import engine_command

if TYPE_CHECKING:
    from sluiceway.engine import Job
    from sluiceway.monitoring.configuration import ConfiguredOption
    from sluiceway.monitoring.web_server import WebOptions
    from sluiceway.runtime.cluster.job_server import JobServer

__all__ = ["link", "web_interface"]

_END_S: Final = 5.0


def link(url: str, token: str) -> str:
    """Return the link that people open."""
    return f"{url}?token={token}"


@contextmanager
def web_interface(
    job: Job,
    name: str,
    options: WebOptions,
    tell: Callable[[str], None],
    configuration: Sequence[ConfiguredOption] = (),
) -> Iterator[JobServer]:
    """Serve the pages of a job in this context, from a process of its own that asks the job over a socket.

    Gives the server that answers it.

    Args:
        job: the job.
        name: name of the pipeline.
        options: of the web server.
        tell: called with the link.
        configuration: options of the run, with their origins.

    Raises:
        ConfigurationError: the web server cannot be started.
    """
    from sluiceway.clock import SystemClock
    from sluiceway.entrypoint.webserver import WebProcess
    from sluiceway.runtime.cluster.cluster_directory import held_directory
    from sluiceway.runtime.cluster.job_server import JobServer

    _check_installed()
    with held_directory() as directory:
        server = JobServer(job, name, SystemClock(), directory, configuration)
        server.start()
        process = None
        try:
            process = subprocess.Popen(
                engine_command("sluiceway.entrypoint.webserver"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the job
            )
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(WebProcess.of(server.known, options).encode())
            process.stdin.flush()
            said = process.stdout.readline()
            answer = json.loads(said) if said else {"error": "the process of the web interface has ended"}
            if "error" in answer:
                raise ConfigurationError(answer["error"])
            tell(link(answer["url"], options.token))
            yield server
        finally:
            server.close()
            if process is not None:
                _end(process)


def _check_installed() -> None:
    """Raise an error before anything is started if the web server's library is missing."""
    from sluiceway.cli.manager import manager
    from sluiceway.entrypoint.webserver import make_server

    make_server(manager())


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    # The server ends when its input does.
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
