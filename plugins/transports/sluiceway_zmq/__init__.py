"""Transport ``zmq``: ZeroMQ between workers, over Unix sockets or TCP."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_transports() -> list[Offer]:
    """Offer the transport."""

    def load() -> object:
        from sluiceway_zmq._carrier import ZmqCarrier

        return ZmqCarrier

    return [Offer("zmq", load, "between workers, through ZeroMQ over Unix sockets or TCP", ("zmq",), "zmq")]
