"""TCP connections made without waiting for them."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sluiceway.clock import Clock
from sluiceway.connector import Wait

__all__ = ["Dialer"]

_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR)

_Address: TypeAlias = tuple[int, int, int, Any]


class Dialer:
    """Dialer of one server, address by address, one attempt at a time.

    Args:
        host: name or address.
        port: TCP port.
        timeout_s: seconds for the name lookup, and for each address.
        clock: the runtime's.
        wake: has :meth:`poll` called again; used when a name lookup in a helper thread is done.
    """

    def __init__(self, host: str, port: int, timeout_s: float, clock: Clock, wake: Callable[[], None]) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._clock = clock
        self._wake = wake
        self._lookup: _Lookup | None = None
        self._addresses: list[_Address] | None = None
        self._socket: socket.socket | None = None
        self._deadline: float | None = None
        self._error: OSError | None = None

    def poll(self) -> socket.socket | Wait:
        """Return the connected, non-blocking socket (given away), or what to wait for before asking again.

        Raises:
            OSError: this attempt failed: the last address's error. The next call begins another attempt.
        """
        try:
            if self._addresses is None:
                found = self._resolve()
                if isinstance(found, Wait):
                    return found
                self._addresses = found
            while True:
                outcome = self._begin() if self._socket is None else self._check(self._socket)
                if outcome is not None:
                    return outcome
        except OSError:
            self._reset()
            raise

    def close(self) -> None:
        """Give the attempt up."""
        self._reset()

    def _reset(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._addresses = self._deadline = self._error = None

    # ---- names ---------------------------------------------------------------------------------------------

    def _resolve(self) -> list[_Address] | Wait:
        try:
            # Addresses first: they need no name service, and the call does not block.
            return self._look_up(socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        if self._host.lower() == "localhost":  # from a file: not worth a thread
            return self._look_up(0)
        now = self._clock.monotonic()
        if self._lookup is None:
            self._lookup = _Lookup(self._look_up, self._wake)
            self._deadline = None
        if self._deadline is None:
            self._deadline = now + self._timeout_s
        if not self._lookup.done.is_set():
            if now >= self._deadline:  # the thread goes on; the next attempt waits for the same one
                raise TimeoutError(
                    errno.ETIMEDOUT, f"no answer from the name service within {self._timeout_s:g} s"
                )
            return Wait(until=self._deadline)
        lookup, self._lookup = self._lookup, None
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    def _look_up(self, flags: int) -> list[_Address]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]

    # ---- addresses -----------------------------------------------------------------------------------------

    def _begin(self) -> socket.socket | Wait | None:
        assert self._addresses is not None
        if not self._addresses:
            raise self._error or OSError(errno.EADDRNOTAVAIL, "the name has no address")
        family, kind, protocol, address = self._addresses.pop(0)
        try:
            self._socket = socket.socket(family, kind, protocol)
        except OSError as error:  # no IPv6 on this machine
            self._error = error
            return None
        self._socket.setblocking(False)
        self._deadline = self._clock.monotonic() + self._timeout_s
        code = self._socket.connect_ex(address)
        if code and code not in _UNDER_WAY:
            return self._failed(code)
        return self._check(self._socket)

    def _check(self, attempt: socket.socket) -> socket.socket | Wait | None:
        code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return self._failed(code)
        try:
            # Fails as long as the socket is not connected; SO_ERROR is 0 also while the attempt is under way.
            peer = attempt.getpeername()
        except OSError:
            assert self._deadline is not None
            if self._clock.monotonic() >= self._deadline:
                return self._failed(errno.ETIMEDOUT, f"no answer within connect_timeout={self._timeout_s:g} s")
            return Wait(fileno=attempt.fileno(), write=True, until=self._deadline)
        if peer == attempt.getsockname():  # nobody listens there; TCP met itself
            return self._failed(errno.ECONNREFUSED)
        self._socket = None
        self._reset()
        return attempt

    def _failed(self, code: int, reason: str | None = None) -> socket.socket | None:
        """Remember why; what follows is the next address."""
        assert self._socket is not None
        self._error = OSError(code, reason or os.strerror(code))
        self._socket.close()
        self._socket = None
        return None


class _Lookup:
    """A name lookup in a thread of its own: the system's call cannot be told not to block."""

    def __init__(self, look_up: Callable[[int], list[_Address]], wake: Callable[[], None]) -> None:
        self.done = threading.Event()
        self.found: list[_Address] = []
        self.error: OSError | None = None
        self._look_up = look_up
        self._wake = wake
        threading.Thread(target=self._run, name="sluiceway-socket-lookup", daemon=True).start()

    def _run(self) -> None:
        try:
            self.found = self._look_up(0)
        except OSError as error:
            self.error = error
        except UnicodeError as error:  # a label that is empty or too long
            self.error = OSError(errno.EINVAL, f"not a host name ({error})")
        self.done.set()
        self._wake()
