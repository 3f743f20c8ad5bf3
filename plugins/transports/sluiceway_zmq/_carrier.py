"""Carrier over ZeroMQ: one socket on which a worker listens, one for each worker that it connects to."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import zmq

from sluiceway.errors import ConfigurationError
from sluiceway.transport.carrier import Carrier, CarrierContext, Link
from sluiceway.util.overriding import override
from sluiceway_zmq._address import BIND_VARIABLE, Address, Gatekeeper, check_bind, client_keys
from sluiceway_zmq._greeting import Greeting, read_hello
from sluiceway_zmq._links import CHALLENGE, HELLO, PROOF, AcceptedLink, DialedLink
from sluiceway_zmq._loop import can_be_read, configure, read_event, rest_of_message, watch_life

__all__ = ["ZmqCarrier"]

# MAXMSGSIZE: ZeroMQ disconnects a peer that announces a larger message, before any memory is reserved for it.
_LARGEST: Final = 1 << 26
_BACKLOG: Final = 1024
# sun_path has 108 bytes on Linux, the terminating zero included.
_LONGEST_PATH: Final = 107
_MOST_STRANGERS: Final = 128
"""Peers that were challenged and have not answered; one more takes the place of the oldest."""


class _Place(NamedTuple):
    """Connection of the listening socket: its descriptor, and how often that number was used."""

    fileno: int
    turn: int


class _Stranger(NamedTuple):
    greeting: Greeting
    name: str
    place: _Place


class ZmqCarrier(Carrier):
    """Carrier of frames as ZeroMQ messages: the header, and the payload as a second part.

    A worker listens on a Unix socket in the cluster's directory, which only its user may enter, or on TCP. On TCP
    everything is encrypted (CURVE): the key of the listening worker is part of its address, which workers learn
    from their job manager, and the key of the connecting one is derived from the cluster's secret. Either way both
    sides prove that they know the secret before any other message is accepted.

    What is sent is copied into ZeroMQ's own memory, and read from there in place. The credit of the channels
    limits that memory.

    Args:
        bind: ``tcp://HOST:PORT``, with ``*`` for any free port; "": a Unix socket; None: the value of the
            environment variable ``SLUICEWAY_ZMQ_BIND``.

    Raises:
        ConfigurationError: the endpoint cannot be bound, or encryption is not available.
    """

    def __init__(self, bind: str | None = None) -> None:
        self._bind = os.environ.get(BIND_VARIABLE, "") if bind is None else bind
        if self._bind:
            check_bind(self._bind)
        self._context: CarrierContext | None = None
        self._zmq: zmq.Context[zmq.Socket[bytes]] | None = None
        self._path = ""
        self._watched: list[tuple[zmq.Socket[bytes], int]] = []
        self._dialed: set[DialedLink] = set()
        self._strangers: dict[bytes, _Stranger] = {}
        self._accepted: dict[bytes, AcceptedLink] = {}
        # Identity of the peer by connection: events of the monitor name a descriptor, messages an identity.
        self._at: dict[_Place, bytes] = {}
        self._turns: dict[int, int] = {}
        self._gone: list[_Place] = []
        self._reading = False
        self._look_comes = False

    # ---- the contract ---------------------------------------------------------------------------------------

    def start(self, context: CarrierContext) -> str:
        """Listen on a socket in the cluster's directory, or on TCP."""
        self._context = context
        self._zmq = zmq.Context()
        # For the sockets of events, too: one that is full would hold up ZeroMQ's own thread.
        self._zmq.setsockopt(zmq.RCVHWM, 0)
        self._router = self._zmq.socket(zmq.ROUTER)
        configure(self._router, _LARGEST)
        # Sending to a peer that has gone raises; without the option the message is dropped silently.
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.BACKLOG, _BACKLOG)
        # Before the socket is bound: a missed EVENT_ACCEPTED would leave the turn of its descriptor one short.
        self._life = watch_life(self._router, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._watch(self._router, self._look)
        self._watch(self._life, self._ready)
        try:
            address = self._listen_on_tcp(context.secret) if self._bind else self._listen_on_path(context)
        except BaseException:
            self.close()
            raise
        return str(address)

    def segments(self, count: int, size: int) -> list[memoryview]:
        """Return ordinary memory: its content is copied when it is sent."""
        if size > _LARGEST:
            raise ConfigurationError(f"transport 'zmq' has no network buffers of {size} bytes: {_LARGEST} at most")
        whole = memoryview(bytearray(count * size))
        return [whole[i * size : (i + 1) * size] for i in range(count)]

    @override
    def connect(self, peer: str, address: str) -> Link:
        context = self._started()
        assert self._zmq is not None
        socket = self._zmq.socket(zmq.DEALER)
        configure(socket, _LARGEST)
        where = Address.parse(address)
        # Without the option ZeroMQ takes the address and never connects to it.
        if "[" in where.endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        if where.key:
            socket.curve_serverkey = where.key.encode()
            socket.curve_publickey, socket.curve_secretkey = client_keys(context.secret)
        link = DialedLink(socket, peer, context, self._dialed.discard)
        self._dialed.add(link)
        link.connect(where.endpoint)
        return link

    def close(self) -> None:
        """Close all links and the socket, remove its name."""
        if self._zmq is None:
            return
        # The goodbyes of accepted links go out on the router's socket, which therefore closes after them.
        for link in [*self._dialed, *self._accepted.values()]:
            link.close()
        # While its events still have a reader: without one, ZeroMQ's own thread would wait for one for ever.
        self._router.disable_monitor()
        for socket, fileno in self._watched:
            self._started().unwatch(fileno, False)
            # Monitors and the gatekeeper have nothing left to send. The router keeps its linger time, for the
            # goodbyes.
            if socket is not self._router:
                socket.close(0)
        self._watched.clear()
        self._router.close()
        # Blocks until all goodbyes are sent or the linger time is over.
        self._zmq.term()
        self._zmq = None
        if self._path:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    # ---- listening ------------------------------------------------------------------------------------------

    def _listen_on_path(self, context: CarrierContext) -> Address:
        path = os.path.join(context.directory, f"{context.worker}.zmq")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise ConfigurationError(
                f"{path} is too long for the name of a socket, {_LONGEST_PATH} bytes at most: choose a shorter "
                "directory for temporary files (TMPDIR)"
            )
        self._router.bind(f"ipc://{path}")
        os.chmod(path, 0o600)
        self._path = path
        return Address(f"ipc://{path}")

    def _listen_on_tcp(self, secret: bytes) -> Address:
        assert self._zmq is not None
        admitted, _ = client_keys(secret)
        gatekeeper = Gatekeeper(self._zmq, admitted)
        self._watch(gatekeeper.socket, gatekeeper.ready)
        public, private = zmq.curve_keypair()
        self._router.curve_server = 1
        self._router.curve_publickey = public
        self._router.curve_secretkey = private
        self._router.zap_domain = b"sluiceway"
        if "[" in self._bind:
            self._router.setsockopt(zmq.IPV6, 1)
        try:
            self._router.bind(self._bind)
        except zmq.ZMQError as error:
            raise ConfigurationError(
                f"transport 'zmq' cannot listen on {self._bind}: {error}; with * as the port each worker "
                "takes one that is free"
            ) from error
        return Address(self._router.getsockopt_string(zmq.LAST_ENDPOINT), public.decode())

    def _watch(self, socket: zmq.Socket[bytes], ready: Callable[[], None]) -> None:
        fileno = int(socket.getsockopt(zmq.FD))
        self._watched.append((socket, fileno))
        self._started().watch(fileno, False, ready)
        # ZeroMQ signals only what comes after a look that has found nothing.
        self._started().soon(ready)

    def _started(self) -> CarrierContext:
        if self._context is None:
            raise RuntimeError("call start() first")
        return self._context

    # ---- what comes in --------------------------------------------------------------------------------------

    def _ready(self) -> None:
        """Read everything: ZeroMQ tells once that there is something, not how much."""
        if self._reading:
            return
        self._reading = True
        try:
            while not self._router.closed:
                self._see_who_left()
                gone, self._gone = self._gone, []
                # First what they had still sent.
                self._read()
                for place in gone:
                    self._left(place)
                # Who is told of a loss may send, and use up a signal.
                if not gone and not self._gone:
                    break
        finally:
            self._reading = False

    def _read(self) -> None:
        router = self._router
        while not router.closed and can_be_read(router):
            sender = router.recv(zmq.NOBLOCK)
            link = self._accepted.get(sender)
            if link is not None:
                # The first part is small and copied; a payload stays in ZeroMQ's memory.
                said = router.recv(zmq.NOBLOCK)
                link.received(said, *rest_of_message(router))
            else:
                # Only a Frame, not bytes, can be asked for the descriptor that it came from.
                frame = router.recv(zmq.NOBLOCK, copy=False)
                # Surplus parts are read and dropped: left there, the next read would take one for a peer's
                # identity.
                if rest_of_message(router)[1] == 1:
                    self._greet(sender, frame)

    def _see_who_left(self) -> None:
        """Count the connections by their descriptors, whose numbers are used again."""
        while (event := read_event(self._life)) is not None:
            kind, fileno = event
            if kind == zmq.EVENT_ACCEPTED:
                self._turns[fileno] = self._turns.get(fileno, 0) + 1
            elif kind == zmq.EVENT_DISCONNECTED:
                self._gone.append(_Place(fileno, self._turns.get(fileno, 0)))

    def _left(self, place: _Place) -> None:
        peer = self._at.pop(place, None)
        if peer is None:
            return
        self._strangers.pop(peer, None)
        link = self._accepted.get(peer)
        if link is not None:
            link.lose("has gone")

    # ---- strangers ------------------------------------------------------------------------------------------

    def _greet(self, sender: bytes, frame: zmq.Frame) -> None:
        """Handle a message of a connection that is not authenticated; an unexpected one gets no answer."""
        said = frame.bytes
        if said[:1] == HELLO and sender not in self._strangers:
            self._challenge(sender, said[1:], frame)
        elif said[:1] == PROOF:
            # Forgotten before the proof is checked: each challenge allows one answer.
            stranger = self._strangers.pop(sender, None)
            if stranger is not None and stranger.greeting.proves(said[1:]):
                self._accept(sender, stranger)

    def _challenge(self, sender: bytes, said: bytes, frame: zmq.Frame) -> None:
        read = read_hello(said)
        if read is None:
            return
        # Which connection is it? One of that descriptor that is gone by now could have sent this. But an answer
        # to the challenge shows that it was there after this look at all that have come.
        self._see_who_left()
        fileno = int(frame.get(zmq.SRCFD))
        place = _Place(fileno, self._turns.get(fileno, 0))
        drawn, name = read
        context = self._started()
        greeting = Greeting(context.secret, name, context.worker, drawn)
        challenge = CHALLENGE + greeting.challenge()
        try:
            self._router.send(sender, zmq.NOBLOCK | zmq.SNDMORE)
            self._router.send(challenge, zmq.NOBLOCK)
        except zmq.ZMQError:
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            oldest = self._strangers.pop(next(iter(self._strangers)))
            self._at.pop(oldest.place, None)
        self._strangers[sender] = _Stranger(greeting, name, place)
        self._at[place] = sender

    def _accept(self, sender: bytes, stranger: _Stranger) -> None:
        def forget() -> None:
            self._accepted.pop(sender, None)
            self._at.pop(stranger.place, None)

        link = AcceptedLink(self._router, sender, stranger.name, self._started(), self._sent, forget)
        self._accepted[sender] = link
        self._started().accepted(link)

    def _sent(self) -> None:
        """Read again: sending may have used up the signal of a message."""
        if not self._reading and not self._look_comes:
            self._look_comes = True
            self._started().soon(self._look)

    def _look(self) -> None:
        self._look_comes = False
        if self._reading:
            return
        self._reading = True
        try:
            self._read()
        finally:
            self._reading = False
        # _challenge() drains the monitor while messages are read; the signal for what it found there is used up.
        if self._gone:
            self._ready()
