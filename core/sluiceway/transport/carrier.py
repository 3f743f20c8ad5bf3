"""How frames get from one worker to another: what a plugin implements that brings a transport between processes.

A carrier moves bytes and knows nothing of channels, elements or credit: the core does all that in the same way
over every carrier (:mod:`sluiceway.network`). Everything is called, and calls back, in the worker's loop.
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
    """A link broke: the peer died, closed it, or sent what is no frame. The message names the peer by ``repr``."""


class Payload(Protocol):
    """The bulk of a frame as the receiver sees it, in place. Not to be used after :meth:`release`."""

    @property
    def data(self) -> memoryview:
        """The bytes."""

    def release(self) -> None:
        """Done with it, once: the memory goes back to where it came from."""


class Link(ABC):
    """A connection between two workers: frames, both ways, in order, none lost while it stands.

    A link that breaks is told to both sides, and another one can be made; other links are not affected. Whatever
    bytes a peer sends, at the worst its own link is lost.

    Attributes:
        peer: name of the worker at the other end.
        on_frame: called with each frame that has come in: its header, and its payload, which the callee
            releases; None where it has none. Set by the core before anything can come in.
        on_lost: called once when the link is lost; not after :meth:`close`.
    """

    peer: str
    on_frame: Callable[[bytes, Payload | None], None]
    on_lost: Callable[[LinkLostError], None]

    @abstractmethod
    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send a frame. Never blocks; what is sent in one turn of the loop may go out at its end.

        Args:
            header: at most 64 KiB.
            payload: the link takes over one reference and releases it when nobody reads it any more, also if
                the link is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Send what is waiting as far as that goes at once, and part. Payloads of the peer stay good."""


@dataclass(frozen=True, slots=True)
class CarrierContext:
    """What the worker gives to a carrier.

    Attributes:
        worker: the worker's name, unique in the cluster.
        directory: a directory of the cluster that only its user may enter; for sockets and the like.
        secret: the cluster's, known to all its workers and to nobody else.
        watch: ``watch(fileno, write, ready)`` calls ``ready`` in the loop whenever the file can be read
            (``write`` false) or written (true), until ``unwatch``.
        unwatch: ``unwatch(fileno, write)``.
        soon: has something called once, soon, before the loop sleeps: when all that is at work has had its turn.
            What is sent in a turn can go out together then.
        accepted: to be called with each link that a peer has made, when the peer has proved that it belongs to
            the cluster.
        later: ``later(action, after_s)`` has something called once, after a delay in seconds, and returns the
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
    """A way to carry frames: what a plugin offers under a name of a transport."""

    @abstractmethod
    def start(self, context: CarrierContext) -> str:
        """Begin to listen; returns the address at which peers can reach this worker."""

    @abstractmethod
    def segments(self, count: int, size: int) -> list[memoryview]:
        """The memory that payloads are sent from: ``count`` writable pieces of ``size`` bytes. Called once."""

    @abstractmethod
    def connect(self, peer: str, address: str) -> Link:
        """Make a link to a peer. Frames sent before it stands wait.

        A peer that cannot be reached, or does not prove that it belongs to the cluster, is a link that is lost:
        ``on_lost`` is called, in a later turn of the loop; this does not raise.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all links and free everything, also what the file system has of it. Harmless a second time."""
