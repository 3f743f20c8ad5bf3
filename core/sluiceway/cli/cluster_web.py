"""The web interface that ``sluiceway cluster start --web`` starts, and that ends with the cluster."""

from __future__ import annotations

import json
import os
import subprocess
from typing import IO, TYPE_CHECKING

from sluiceway.cli.web_interface import link
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.engine_processes import engine_command

if TYPE_CHECKING:
    from sluiceway.entrypoint.webserver import WebProcess
    from sluiceway.monitoring.web_server import WebOptions

__all__ = ["check_web", "start_web", "start_web_ahead", "web_link"]

_FILE = "web.json"


def start_web(options: WebOptions) -> str:
    """Start the web interface of the running cluster in the background. Returns its link.

    Raises:
        ConfigurationError: it cannot be started.
    """
    from sluiceway.entrypoint.webserver import WebProcess
    from sluiceway.runtime.cluster.home import cluster_file, read_cluster_file
    from sluiceway.util.durable_files import write_file

    directory = read_cluster_file().directory
    line, url = _start(WebProcess.of(None, options, directory=directory, detached=True))
    line.close()
    shown = link(url, options.token)
    facts = {"directory": directory, "link": shown}
    write_file(cluster_file().with_name(_FILE), json.dumps(facts).encode())
    return shown


def check_web() -> None:
    """Check that the server can be loaded, before anything is started. Raises the error that names the extra."""
    from sluiceway.cli.manager import manager
    from sluiceway.entrypoint.webserver import make_server

    make_server(manager())


def start_web_ahead(options: WebOptions) -> str:
    """Start the web interface of the cluster that this process is about to become the job manager of.

    It ends with this process, whatever program that runs by then. Returns its link.

    Raises:
        ConfigurationError: it cannot be started.
    """
    from sluiceway.entrypoint.webserver import WebProcess

    line, url = _start(WebProcess.of(None, options, detached=True))
    # It must outlive the program that is replaced: the server ends when nobody has it any more.
    os.set_inheritable(os.dup(line.fileno()), True)
    return link(url, options.token)


def _start(told: WebProcess) -> tuple[IO[bytes], str]:
    """Start the process. Returns the line to it, and the URL."""
    from sluiceway.runtime.cluster.home import cluster_file
    from sluiceway.util.private_files import make_private_directory, private_opener

    make_private_directory(cluster_file().parent)
    with open(cluster_file().with_name("web.log"), "wb", opener=private_opener) as log:
        process = subprocess.Popen(
            engine_command("sluiceway.entrypoint.webserver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(told.encode())
    process.stdin.flush()
    with process.stdout as answers:
        said = answers.readline()
    process.wait()  # it leaves its work to a process that is nobody's child
    answer = json.loads(said) if said else {"error": f"its process has ended: see {log.name}"}
    if "error" in answer:
        process.stdin.close()
        raise ConfigurationError(answer["error"])
    return process.stdin, answer["url"]


def web_link() -> str:
    """Return the link of the running cluster's web interface; empty: there is none."""
    from sluiceway.runtime.cluster.home import cluster_file, read_cluster_file

    try:
        told = json.loads(cluster_file().with_name(_FILE).read_bytes())
        return str(told["link"]) if told["directory"] == read_cluster_file().directory else ""
    except (OSError, ValueError, KeyError, TypeError, ConnectorError):
        return ""
