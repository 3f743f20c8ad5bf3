"""Contract of carriers: transports of frames between workers, as plugins implement them.

A carrier moves bytes and knows nothing of channels, elements or credit: the core does all that in the same way
over every carrier (:mod:`sluiceway.network`). All calls and callbacks are made in the worker's loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sluiceway.transport.accept_loop import Later
from sluiceway.transport.buffers import Buffer

__all__ = ["Carrier", "CarrierContext", "Link", "LinkLostError", "Payload"]


class LinkLostError(ConnectionError):
    """A link broke: the peer died, closed it, or sent an invalid frame. The message names the peer by ``repr``."""


class Payload(Protocol):
    """Bulk of a frame as the receiver sees it, in place. Not to be used after :meth:`release`."""

    @property
    def data(self) -> memoryview:
        """Bytes of the payload."""

    def release(self) -> None:
        """Return the memory to its owner. Call it once."""


class Link(ABC):
    """Connection between two workers: frames, both ways, in order, none lost while it is connected.

    Both sides are notified of a broken link, and another one can be made; other links are not affected. Whatever
    bytes a peer sends, it can lose no other link than its own.

    Attributes:
        peer: name of the worker at the other end.
        on_frame: called with each received frame: its header, and its payload, which the callee
            releases; None where it has none. Set by the core before a frame can arrive.
        on_lost: called once when the link is lost; not after :meth:`close`.
    """

    peer: str
    on_frame: Callable[[bytes, Payload | None], None]
    on_lost: Callable[[LinkLostError], None]

    @abstractmethod
    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send a frame. Never blocks; what is sent in one turn of the loop may go out at its end.

        Args:
            header: at most 64 KiB, except that of a failure, with the pickled cause: at most 2 MiB.
            payload: the link takes over one reference and releases it after use, also if
                the link is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Send what is waiting as far as that goes at once, and part.

        Payloads of the peer stay good until they are released, and sent ones until the peer has released them or
        has ended: until then their buffers are not released.
        """


@dataclass(frozen=True, slots=True)
class CarrierContext:
    """Context that the worker passes to a carrier.

    Attributes:
        worker: the worker's name, unique in the cluster.
        directory: a directory of the cluster that only its user may enter; for sockets and the like.
        secret: the cluster's secret, known to its workers only.
        watch: ``watch(fileno, write, ready)`` calls ``ready`` in the loop whenever the file can be read
            (``write`` false) or written (true), until ``unwatch``.
        unwatch: ``unwatch(fileno, write)``.
        soon: schedules one call before the loop sleeps, when all tasklets have had their turn.
            What is sent in a turn can go out together then.
        accepted: called with each link that a peer has made, when the peer has proved that it belongs to
            the cluster.
        later: ``later(action, after_s)`` schedules one call after a delay in seconds, and returns the
            call, which can be cancelled. For deadlines of handshakes, and pauses where descriptors are short:
            :class:`~sluiceway.transport.accept_loop.AcceptLoop` does both.
        warn: logs a warning, a whole sentence.
    """

    worker: str
    directory: str
    secret: bytes
    watch: Callable[[int, bool, Callable[[], None]], None]
    unwatch: Callable[[int, bool], None]
    soon: Callable[[Callable[[], None]], None]
    accepted: Callable[[Link], None]
    later: Later
    warn: Callable[[str], None]


class Carrier(ABC):
    """Carrier of frames, which a plugin offers under the name of a transport."""

    @abstractmethod
    def start(self, context: CarrierContext) -> str:
        """Begin to listen; returns the address at which peers can reach this worker."""

    @abstractmethod
    def segments(self, count: int, size: int) -> list[memoryview]:
        """Return the memory of sent payloads: ``count`` writable pieces of ``size`` bytes. Called once."""

    @abstractmethod
    def connect(self, peer: str, address: str) -> Link:
        """Return a link to a peer. Frames sent before it is connected wait.

        A peer that cannot be reached, or does not prove that it belongs to the cluster, is a link that is lost:
        ``on_lost`` is called, in a later turn of the loop; this does not raise.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all links and free everything, also what the file system has of it. Harmless a second time."""
