"""Mutual authentication of two workers: each proves that it knows the cluster's secret, which is never sent.

======  =========  =================================================================================
from    message    content
======  =========  =================================================================================
dialer  HELLO      the version, 32 random bytes, its name
other   CHALLENGE  32 random bytes, its proof over both workers' names and random bytes
dialer  PROOF      its own proof over the same
======  =========  =================================================================================
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

__all__ = ["Greeting", "hello", "read_hello"]

_VERSION: Final = b"\1"
_RANDOM: Final = 32
_PROOF: Final = 32


def hello(name: str) -> tuple[bytes, bytes]:
    """Return the dialer's first message, and the random part of it."""
    drawn = secrets.token_bytes(_RANDOM)
    return _VERSION + drawn + name.encode(), drawn


def read_hello(body: bytes) -> tuple[bytes, str] | None:
    """Return the random bytes and the name of a hello; None for another message."""
    if body[:1] != _VERSION or len(body) <= 1 + _RANDOM:
        return None
    try:
        return body[1 : 1 + _RANDOM], body[1 + _RANDOM :].decode()
    except UnicodeDecodeError:
        return None


class Greeting:
    """State of both sides after the dialer's hello.

    Args:
        secret: the cluster's secret.
        dialer: name of the worker that connects.
        other: name of the worker that it connects to.
        drawn: the dialer's random bytes.
    """

    def __init__(self, secret: bytes, dialer: str, other: str, drawn: bytes) -> None:
        self._secret = secret
        self._names = (dialer.encode(), other.encode())
        self._dialers = drawn
        self._others = b""

    def challenge(self) -> bytes:
        """Return the other side's answer to a hello."""
        self._others = secrets.token_bytes(_RANDOM)
        return self._others + self._proof(b"other")

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the dialer's proof; None if the other side does not know the secret."""
        if len(challenge) != _RANDOM + _PROOF:
            return None
        self._others = challenge[:_RANDOM]
        if not hmac.compare_digest(challenge[_RANDOM:], self._proof(b"other")):
            return None
        return self._proof(b"dialer")

    def proves(self, answer: bytes) -> bool:
        """Return whether the dialer knows the secret."""
        return hmac.compare_digest(answer, self._proof(b"dialer"))

    def _proof(self, who: bytes) -> bytes:
        # Each part with its length: no two lists of parts give the same bytes. The role keeps a peer from
        # returning a proof to its maker, and random bytes of both sides make it useless in another handshake.
        said = b"".join(
            len(part).to_bytes(4, "little") + part
            for part in (b"sluiceway zmq", who, *self._names, self._dialers, self._others)
        )
        return hmac.digest(self._secret, said, "sha256")
