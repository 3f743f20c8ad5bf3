"""An HTTP endpoint, for as long as the job runs, that tells its figures when it is asked."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from sluiceway.errors import ConfigurationError
from sluiceway.metrics import JobMetrics, MetricsReporter
from sluiceway_prometheus._families import JobCollector

__all__ = ["DEFAULT_PORT", "PORT_VARIABLE", "PrometheusReporter"]

PORT_VARIABLE: Final = "SLUICEWAY_PROMETHEUS_PORT"
"""The environment variable that names the port."""
DEFAULT_PORT: Final = 9249
_ADDRESS: Final = "127.0.0.1"
_MOST: Final = 65_535
_SILENT_S: Final = 10.0
"""Seconds for which a client may send nothing."""


class PrometheusReporter(MetricsReporter):
    """Reporter that serves the last figures at ``http://127.0.0.1:PORT/metrics`` from open to close.

    Args:
        port: the port; 0: any that is free; None: the one that ``SLUICEWAY_PROMETHEUS_PORT`` names, else 9249.

    Attributes:
        port: the port; once open, the one that is served.

    Raises:
        ConfigurationError: what the variable holds is no port.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = _port_of_environment() if port is None else port
        self._collector = JobCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)  # of this process: the job's, or its job manager's
        self._served: tuple[WSGIServer, Thread] | None = None

    def open(self, job_name: str) -> None:
        """Listen. Raises ConfigurationError where somebody else has the port."""
        try:
            self._served = start_http_server(self.port, _ADDRESS, self._registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics reporter 'prometheus' cannot listen on {_ADDRESS}:{self.port}: {error.strerror or error}"
                f"; set {PORT_VARIABLE} to a port that is free"
            ) from error
        server = self._served[0]
        server.RequestHandlerClass = _hurried(server.RequestHandlerClass)
        self.port = server.server_port

    def report(self, metrics: JobMetrics) -> None:
        """Have these figures told from now on."""
        self._collector.metrics = metrics

    def close(self) -> None:
        """Stop listening. Harmless twice."""
        served, self._served = self._served, None
        if served is not None:
            server, thread = served
            server.shutdown()
            server.server_close()
            thread.join()


def _hurried(handler: Any) -> Any:
    """Return a handler that gives up a request that does not come: each has a thread of the job's process."""

    class Hurried(handler):  # type: ignore[misc]
        timeout = _SILENT_S

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return Hurried


def _port_of_environment() -> int:
    named = os.environ.get(PORT_VARIABLE, "")
    if not named:
        return DEFAULT_PORT
    if not named.isascii() or not named.isdigit() or int(named) > _MOST:
        raise ConfigurationError(
            f"{PORT_VARIABLE} is {named!r}, which is no port: give a number from 0 to {_MOST}"
        )
    return int(named)
