"""Accept loop of a listening socket in an event loop, for the job manager and carriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["AcceptLoop", "Cancellable", "Later", "Listening", "Stranger"]

PROOF_S: Final = 30.0
"""Seconds that a connection has for its handshake: a machine under load is slow, not hostile."""
MOST_STRANGERS: Final = 128

# Connections that are accepted in one turn of the loop, which has other files to serve as well.
_A_TURN: Final = 16
# Seconds that accepting pauses, and that refused connections are counted before they are logged.
_PAUSE_S: Final = 0.5
_QUIET_S: Final = 60.0


class Cancellable(Protocol):
    """Call that is made later."""

    def cancel(self) -> None:
        """Forget the call; harmless twice, and after it."""


Later = Callable[[Callable[[], None], float], Cancellable]
"""Has an action called in the loop after a delay in seconds."""


class Listening(Protocol):
    """Listening socket, which never blocks."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def accept(self) -> tuple[Any, Any]:
        """Return the next connection and its address. Raises BlockingIOError where none waits."""


class Stranger(Protocol):
    """Connection whose peer is not authenticated."""

    def turn_away(self, why: str) -> None:
        """Close the connection, unless the proof has come by now."""


class AcceptLoop:
    """Accept loop that bounds the resources of connections that are not authenticated.

    A connection has :data:`PROOF_S` for its handshake. At most :data:`MOST_STRANGERS` may be unauthenticated:
    one more replaces the oldest, so that idle ones keep no peer out. A problem with one connection
    is logged, and ends that one.

    Where the process or the machine has no descriptors left, accepting pauses for a moment: the listening socket
    stays ready to be read, and a loop that tried again at once would do nothing else.

    All calls, and callbacks, in the loop's thread.

    Args:
        listener: listens already.
        accepted: takes a connection over; None: it was refused and closed. The stranger is hashable.
        watch: ``watch(fileno, write, ready)`` calls ``ready`` whenever the file can be read, until ``unwatch``.
        unwatch: ``unwatch(fileno, write)``.
        later: schedules a call after a delay.
        warn: logs a warning.
        what: name of the listener, for messages.
        proof_s: seconds for a handshake.
        most: number of unauthenticated connections at a time.
    """

    def __init__(
        self,
        listener: Listening,
        accepted: Callable[[Any], Stranger | None],
        *,
        watch: Callable[[int, bool, Callable[[], None]], None],
        unwatch: Callable[[int, bool], None],
        later: Later,
        warn: Callable[[str], None],
        what: str,
        proof_s: float = PROOF_S,
        most: int = MOST_STRANGERS,
    ) -> None:
        self._listener = listener
        self._fileno = listener.fileno()
        self._accepted = accepted
        self._watch = watch
        self._unwatch = unwatch
        self._later = later
        self._warn = warn
        self._what = what
        self._proof_s = proof_s
        self._most = most
        # By age: where there are too many, the oldest is closed.
        self._strangers: dict[Stranger, Cancellable] = {}
        self._paused: Cancellable | None = None
        self._pause_told = False
        self._quiet: Cancellable | None = None
        self._untold = 0
        self._last = ""
        self._closed = False
        watch(self._fileno, False, self._ready)

    @property
    def strangers(self) -> int:
        """Number of connections that are not authenticated yet."""
        return len(self._strangers)

    def forget(self, stranger: Stranger) -> None:
        """Note that a connection is authenticated or closed. Harmless twice."""
        deadline = self._strangers.pop(stranger, None)
        if deadline is not None:
            deadline.cancel()

    def refused(self, why: str) -> None:
        """Log that a connection was closed before it was authenticated.

        The first one at once, others as a number once a minute: peers must not be able to fill the log.
        """
        if self._closed:
            return
        if self._quiet is None:
            self._warn(f"{self._what} closed a connection: {why}")
            self._quiet = self._later(self._tell_refused, _QUIET_S)
        else:
            self._untold += 1
            self._last = why

    def close(self) -> None:
        """Accept no further connection. The caller closes the listening socket after this."""
        if not self._closed:
            self._closed = True
            # During a pause the socket is not watched.
            if self._paused is None:
                self._unwatch(self._fileno, False)
            timers = [*self._strangers.values(), self._paused, self._quiet]
            self._strangers.clear()
            for timer in timers:
                if timer is not None:
                    timer.cancel()

    def _ready(self) -> None:
        for _ in range(_A_TURN):
            if self._closed:
                return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it has gone again
            except OSError as error:
                self._pause(error)
                return
            # The next pause is logged again.
            self._pause_told = False
            self._take(sock)

    def _take(self, sock: Any) -> None:
        try:
            stranger = self._accepted(sock)
        except Exception as error:
            sock.close()
            self.refused(f"it cannot be taken on: {type(error).__name__}: {error}")
            return
        if stranger is None:
            return
        if len(self._strangers) >= self._most:
            oldest = next(iter(self._strangers))
            self._turn_away(oldest, f"{self._most} connections had not proved who they are")
        self._strangers[stranger] = self._later(
            lambda: self._turn_away(stranger, f"no proof of the cluster's secret came within {self._proof_s:g} s"),
            self._proof_s,
        )

    def _turn_away(self, stranger: Stranger, why: str) -> None:
        self.forget(stranger)
        stranger.turn_away(why)

    def _pause(self, error: OSError) -> None:
        """Pause, mostly after EMFILE or ENFILE. Peers wait in the listening socket's queue."""
        self._unwatch(self._fileno, False)
        self._paused = self._later(self._resume, _PAUSE_S)
        if not self._pause_told:
            self._pause_told = True
            self._warn(
                f"{self._what} cannot accept connections for now: {error}. It tries again every {_PAUSE_S:g} s; "
                "existing connections stay open"
            )

    def _resume(self) -> None:
        self._paused = None
        if not self._closed:
            self._watch(self._fileno, False, self._ready)
            self._ready()

    def _tell_refused(self) -> None:
        self._quiet = None
        untold, self._untold = self._untold, 0
        if untold:
            self.refused(f"{self._last}; {untold} in the last {_QUIET_S:g} s")
