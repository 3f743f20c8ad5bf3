"""Lines of text over TCP: ``SocketSource`` and ``SocketSink``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_socket._sink import SocketSink
    from sluiceway_socket._source import SocketSource

__all__ = ["SocketSink", "SocketSource"]


def __getattr__(name: str) -> Any:
    if name == "SocketSource":
        from sluiceway_socket._source import SocketSource

        return SocketSource
    if name == "SocketSink":
        from sluiceway_socket._sink import SocketSink

        return SocketSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``socket``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_socket._sink import SocketSink
        from sluiceway_socket._source import SocketSource

        return Connector(source=SocketSource, sink=SocketSink)

    return [Offer("socket", load, "lines of text over TCP, as a client")]
