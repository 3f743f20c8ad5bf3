"""Addresses of workers, and access control: CURVE on TCP, the file system's permissions otherwise."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any, Final

import zmq
from zmq.utils import z85

from sluiceway.errors import ConfigurationError

__all__ = ["BIND_VARIABLE", "Address", "Gatekeeper", "check_bind", "client_keys"]

BIND_VARIABLE: Final = "SLUICEWAY_ZMQ_BIND"

_ZAP: Final = "inproc://zeromq.zap.01"
_EVERYWHERE: Final = ("*", "0.0.0.0", "[::]", "::")


def check_bind(bind: str) -> None:
    """Raise ConfigurationError where nothing can listen, or not safely."""
    scheme, _, rest = bind.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not (port == "*" or (port.isdecimal() and int(port) <= 65535)):
        raise ConfigurationError(
            f"{BIND_VARIABLE}={bind!r} is no address that the transport 'zmq' can listen on: write "
            "tcp://HOST:PORT, with * as the port for any that is free, or leave it out for Unix sockets"
        )
    if host in _EVERYWHERE:
        raise ConfigurationError(
            f"{BIND_VARIABLE}={bind!r} names no host that other workers could connect to: write the address of "
            "one network interface, such as tcp://127.0.0.1:*"
        )
    if not zmq.has("curve"):
        raise ConfigurationError(
            f"{BIND_VARIABLE}={bind!r}: this build of ZeroMQ has no CURVE, so nothing on TCP could be encrypted:"
            " install a build of pyzmq that has it, or leave the variable out for Unix sockets"
        )


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a worker.

    Attributes:
        endpoint: in ZeroMQ's notation.
        key: its public CURVE key; empty on Unix sockets, which have none.
    """

    endpoint: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}".strip()

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address of a text made by ``str()``."""
        endpoint, _, key = text.partition(" ")
        return cls(endpoint, key)


def client_keys(secret: bytes) -> tuple[bytes, bytes]:
    """Return the public and secret CURVE key with which all workers of a cluster connect, from its secret."""
    # SHA-256 gives 32 bytes, the size of a CURVE secret key. The label separates it from other digests of the
    # secret.
    secret_key = z85.encode(hmac.digest(secret, b"sluiceway zmq client key", "sha256"))
    return zmq.curve_public(secret_key), secret_key


class Gatekeeper:
    """Handler of ZeroMQ's requests for access over TCP, which accepts the cluster's own workers.

    Args:
        context: its ZeroMQ context. The handler must exist before anything listens.
        public_key: the one that a worker must have, with the secret key that belongs to it.
    """

    def __init__(self, context: zmq.Context[Any], public_key: bytes) -> None:
        self._admitted = z85.decode(public_key)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def ready(self) -> None:
        """Answer all pending requests."""
        while not self.socket.closed:
            try:
                asked = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # ZAP 1.0 (ZeroMQ RFC 27): version, request, domain, address, identity, mechanism, credentials. CURVE
            # has one credential, the public key of the peer, which ZeroMQ has verified to hold the secret one.
            _, number, _, _, _, mechanism, *credentials = asked
            if mechanism == b"CURVE" and credentials == [self._admitted]:
                verdict = [b"200", b"OK"]
            else:
                verdict = [b"400", b"not a worker of this cluster"]
            self.socket.send_multipart([b"1.0", number, *verdict, b"", b""], zmq.NOBLOCK)
