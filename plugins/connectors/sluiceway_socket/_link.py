"""A connection that is made again when it is lost, as often as allowed."""

from __future__ import annotations

import socket
from collections.abc import Callable

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway_socket._dialer import Dialer
from sluiceway_socket._endpoint import Endpoint

__all__ = ["GaveUpError", "Link", "cannot_connect"]


class GaveUpError(Exception):
    """There is no connection and no retry left; ``str()`` is the reason for the last failure."""


class Link:
    """One connection at a time to an endpoint.

    Args:
        endpoint: where to, how often.
        clock: the runtime's.
        wake: has the owner polled again.

    Attributes:
        connections: how many were made so far.
        retries: how many retries were used.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, wake: Callable[[], None]) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._dialer = Dialer(endpoint.host, endpoint.port, endpoint.connect_timeout_s, clock, wake)
        self._socket: socket.socket | None = None
        self._not_before: float | None = None
        self._waited = False
        self._reason: str | None = None
        self.connections = 0
        self.retries = 0

    @property
    def is_connected(self) -> bool:
        """True until the connection is lost or closed."""
        return self._socket is not None

    def poll(self) -> socket.socket | Wait:
        """Return the connection, which stays this object's, or what to wait for.

        Raises:
            GaveUpError: every retry was used. So does every later call.
        """
        while self._socket is None:
            if self._reason is not None:
                raise GaveUpError(self._reason)
            if self._not_before is not None:
                if not self._waited or self._clock.monotonic() < self._not_before:
                    self._waited = True  # without a delay, too: other tasks run between two attempts
                    return Wait(until=self._not_before)
                self._not_before = None
            try:
                made = self._dialer.poll()
            except OSError as error:
                self.lost(error.strerror or str(error))
                continue
            if isinstance(made, Wait):
                return made
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = made
            self.connections += 1
        return self._socket

    def lost(self, reason: str) -> None:
        """Close a connection that is of no use any more, and use up a retry if there is one."""
        self.close()
        most = self._endpoint.max_retries
        if most is not None and self.retries >= most:
            self._reason = reason
        else:
            self.retries += 1
            self._not_before = self._clock.monotonic() + self._endpoint.retry_delay_s
            self._waited = False

    def close(self) -> None:
        """Close the connection, or the attempt to make one."""
        self._dialer.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def cannot_connect(who: str, endpoint: Endpoint, link: Link, reason: str) -> str:
    """Return the message for a server that could not be reached at all."""
    tries = f" ({link.retries + 1} attempts, {endpoint.retry_delay_s:g} s apart)" if link.retries else ""
    return (
        f"{who} cannot connect to {endpoint}: {reason}{tries}. Start the server first, or have {who} wait for it: "
        f"max_retries=N tries N times more, max_retries=None for ever"
    )
