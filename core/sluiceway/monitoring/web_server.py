"""Contract of web servers: what a plugin offers that shows a cluster in a browser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway.monitoring.monitor import Monitor

__all__ = ["WebOptions", "WebServer"]


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Options of a web server.

    Attributes:
        host: address to bind to.
        port: TCP port; 0: a free one.
        any_port: take a free port if ``port`` is taken.
        token: secret without which nothing is answered.
        certificate: path of a PEM file with the TLS certificate and its chain; empty: no TLS.
        key: path of the PEM file with its private key; empty: it is in ``certificate``.
        root_path: path prefix under which a proxy offers the server, such as ``/proxy/8081``.
        behind_proxy: a proxy does TLS and checks host names.
        read_only: refuse all operations that change a job.
        submit: accept programs, and run them: whoever has the token may run code as this user.
        idle_s: :meth:`WebServer.serve` ends when nobody has asked for so many seconds; 0: it does not.
        target: TARGET of the ``sluiceway run`` that the server belongs to, from which dead letters are replayed;
            empty: it is that of a cluster.
        arguments: the script's own arguments.
        variables: environment variables for the options that were given to ``sluiceway run``.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    any_port: bool = True
    token: str = field(default="", repr=False)
    certificate: str = ""
    key: str = ""
    root_path: str = ""
    behind_proxy: bool = False
    read_only: bool = False
    submit: bool = False
    idle_s: float = 0.0
    target: str = ""
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


class WebServer(ABC):
    """Web server over a monitor, in a process of its own.

    Call order: :meth:`open`, :meth:`serve`; :meth:`stop` at any time after :meth:`open`.
    """

    @abstractmethod
    def open(self, monitor: Monitor, options: WebOptions) -> str:
        """Bind to the address, and return the URL without the token.

        Raises:
            ConfigurationError: the address cannot be bound, or the options are not safe.
        """

    @abstractmethod
    def serve(self) -> None:
        """Answer requests in the calling thread until :meth:`stop` is called, or nobody asks any more."""

    @abstractmethod
    def stop(self) -> None:
        """End :meth:`serve`. From any thread and from signal handlers. Harmless twice."""
