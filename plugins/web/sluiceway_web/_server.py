"""The server: uvicorn over the application, bound before it serves."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sluiceway.errors import ConfigurationError
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.web_server import WebOptions, WebServer
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway_web._app import make_app
from sluiceway_web._security import Guard, is_loopback

__all__ = ["UvicornServer"]

_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 256
_LONGEST_HEADER: Final = 16 * 1024
_CLOSE_S: Final = 2
_SILENT_S: Final = 10.0
"""Seconds in which a connection has to send a request."""


class _Protocol(H11Protocol):
    """Connection that is closed when no whole request comes: others may have no place."""

    _deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._deadline = self.loop.call_later(_SILENT_S, self._end_if_silent, self.cycle)

    def _end_if_silent(self, last: RequestResponseCycle | None) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is last:
            self.transport.close()
        else:
            self._await_request()


class UvicornServer(WebServer):
    """HTTP/1.1 server with one event loop. At most 256 connections at a time; others are refused with 503."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._guard: Guard | None = None
        self._idle_s = 0.0
        self._stopped = threading.Event()

    @override
    def open(self, monitor: Monitor, options: WebOptions) -> str:
        _check(options)
        self._socket = sock = _bound(options)
        try:
            port = sock.getsockname()[1]
            app = self._guard = Guard(make_app(monitor, options), options, port)
            self._server = uvicorn.Server(_config(app, options))
        except BaseException:
            sock.close()
            raise
        self._idle_s = options.idle_s
        scheme = "https" if options.certificate else "http"
        host = f"[{options.host}]" if ":" in options.host else options.host
        return f"{scheme}://{host}:{port}{options.root_path.rstrip('/')}/"

    @override
    def serve(self) -> None:
        assert self._server is not None
        assert self._socket is not None
        # stop() may have been called before.
        self._server.should_exit = self._stopped.is_set()
        if self._idle_s:
            threading.Thread(target=self._watch, name="sluiceway-web-idle", daemon=True).start()
        try:
            # On SIGINT and SIGTERM it ends in good order, and sends itself the signal again.
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self._stopped.set()
            self._socket.close()

    def _watch(self) -> None:
        """End the server when nobody has asked for long enough."""
        assert self._guard is not None
        while not self._stopped.wait(min(1.0, self._idle_s / 4)):
            if self._guard.idle_s >= self._idle_s:
                self.stop()

    def stop(self) -> None:
        """End :meth:`serve`. From any thread."""
        self._stopped.set()
        if self._server is not None:
            self._server.should_exit = True


def _config(app: Guard, options: WebOptions) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_LONGEST_HEADER,
        timeout_graceful_shutdown=_CLOSE_S,
        root_path=options.root_path.rstrip("/"),
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or None,
    )
    config.load()  # now rather than in serve(): what cannot be used is an error of the start
    return config


def _check(options: WebOptions) -> None:
    for path in filter(None, (options.certificate, options.key)):
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {path!r} with a TLS certificate or key")
    if options.key and not options.certificate:
        raise ConfigurationError("--web-key goes with --web-certificate")
    if options.certificate:
        _check_certificate(options.certificate, options.key)
    if options.submit and find_spec("python_multipart") is None:
        raise ConfigurationError(f"--web-submit needs python-multipart: {install_command('sluiceway[web]')}")
    if not options.token:
        raise ConfigurationError("the web interface needs a token")
    if is_loopback(options.host) or options.certificate or options.behind_proxy:
        return
    raise ConfigurationError(
        f"the web interface on {options.host!r} can be reached from other machines, and without TLS its token can "
        "be read on the way: give --web-certificate and --web-key, or say with --web-behind-proxy that a proxy "
        "does TLS"
    )


def _check_certificate(certificate: str, key: str) -> None:
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        # With a function for the passphrase: OpenSSL would ask for it at the terminal, and wait.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, passphrase)
    except OSError as error:  # ssl.SSLError is one
        if asked:
            file = key or certificate
            raise ConfigurationError(
                f"the TLS key in {file!r} has a passphrase, which a server cannot be asked for: give it a key "
                f"without one, readable by you alone, as 'openssl pkey -in {file} -out FILE' writes it"
            ) from None
        raise ConfigurationError(
            f"the TLS certificate {certificate!r} or its key cannot be used: {error}"
        ) from error


def _bound(options: WebOptions) -> socket.socket:
    try:
        return _listen(options.host, options.port)
    except OSError as error:
        if options.any_port and options.port:
            with suppress(OSError):
                return _listen(options.host, 0)
        raise ConfigurationError(
            f"the web interface cannot listen on {options.host}:{options.port}: {error.strerror or error}"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(f"{host!r} is not a host name ({error})") from None
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
