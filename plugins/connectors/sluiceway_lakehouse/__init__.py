"""Tables of lakehouses: ``DeltaSink`` and ``DeltaSource``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_lakehouse._delta_sink import DeltaSink
    from sluiceway_lakehouse._delta_source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource"]


def __getattr__(name: str) -> Any:
    if name == "DeltaSink":
        from sluiceway_lakehouse._delta_sink import DeltaSink

        return DeltaSink
    if name == "DeltaSource":
        from sluiceway_lakehouse._delta_source import DeltaSource

        return DeltaSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``delta``."""

    def load_delta() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_lakehouse._delta_sink import DeltaSink
        from sluiceway_lakehouse._delta_source import DeltaSource

        return Connector(source=DeltaSource, sink=DeltaSink)

    return [Offer("delta", load_delta, "tables of Delta Lake, in columns or records, exactly-once")]
