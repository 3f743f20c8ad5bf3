"""A web server over a job manager, in a process of its own. Standard input has one line of JSON to configure it.

It writes one line of JSON to standard output, with ``url`` or ``error``. It ends when standard input is closed, or
with a cluster.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sluiceway.entrypoint.statereader import ProcessStateMonitor
from sluiceway.errors import SluicewayError
from sluiceway.monitoring.web_server import WebOptions, WebServer
from sluiceway.plugins import PluginManager
from sluiceway.plugins.kinds import WEB_SERVER
from sluiceway.runtime.cluster.client_monitor import ClientMonitor
from sluiceway.runtime.cluster.cluster_directory import is_alive
from sluiceway.runtime.cluster.home import Known
from sluiceway.util.surrogates import json_bytes

__all__ = ["WebProcess", "main", "make_server"]

_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class WebProcess:
    """Configuration of a process with a web server.

    Attributes:
        known: address of the job manager; None: that of this user's cluster.
        options: of the server.
        directory: of the cluster with which it ends; empty: it ends when its standard input is closed.
        detached: leave the work to a process that is nobody's child.
    """

    known: dict[str, Any] | None
    options: dict[str, Any]
    directory: str = ""
    detached: bool = False

    @classmethod
    def of(cls, known: Known | None, options: WebOptions, **how: Any) -> WebProcess:
        """Return the configuration for a job manager; None: that of this user's cluster."""
        facts = None if known is None else {field: getattr(known, field) for field in known.__struct_fields__}
        return cls(facts, asdict(options), **how)

    def encode(self) -> bytes:
        """Return the line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def make_server(plugins: PluginManager) -> WebServer:
    """Return a new web server: ``web`` of the offered ones, or the only one.

    Raises:
        MissingExtraError: its third-party library is not installed.
        UnknownNameError: there is none.
    """
    names = [offered.offer.name for offered in plugins.offers(WEB_SERVER)]
    name = "web" if "web" in names or not names else names[0]
    return plugins.make(WEB_SERVER, name, WebServer)  # type: ignore[type-abstract]


def main() -> None:
    """Serve until standard input is closed, or the cluster has ended."""
    told = sys.stdin.buffer.readline()
    if not told:
        return  # Ctrl-C has ended the command that has started this process
    config = WebProcess(**json.loads(told))
    if config.detached and os.fork():
        os._exit(0)
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is for the terminal
    known = None if config.known is None else Known(**config.known)
    monitor = ClientMonitor(known, ProcessStateMonitor(known))
    try:
        server = make_server(PluginManager())
        url = server.open(monitor, WebOptions(**config.options))
    except SluicewayError as error:
        _answer(answers, error=str(error))
        sys.exit(1)
    if not _answer(answers, url=url):
        return

    ended = threading.Event()

    def watch() -> None:
        if config.directory:
            while is_alive(Path(config.directory)):
                ended.wait(_LOOK_S)
        else:
            sys.stdin.buffer.read()  # until whoever has started this process is gone
        server.stop()

    threading.Thread(target=watch, name="sluiceway-parent", daemon=True).start()
    try:
        server.serve()
    finally:
        ended.set()
        monitor.close()


def _answer(answers: int, **told: str) -> bool:
    """Write the answer and close the descriptor; return False if whoever has started this process is gone."""
    with open(answers, "wb", buffering=0) as pipe:
        try:
            pipe.write(json_bytes(told) + b"\n")
        except BrokenPipeError:
            return False
    return True


if __name__ == "__main__":
    main()
