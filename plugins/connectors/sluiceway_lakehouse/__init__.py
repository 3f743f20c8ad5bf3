"""Tables of lakehouses: ``DeltaSink``, ``DeltaSource``, ``IcebergSink`` and ``IcebergSource``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_lakehouse._delta_sink import DeltaSink
    from sluiceway_lakehouse._delta_source import DeltaSource
    from sluiceway_lakehouse._iceberg_sink import IcebergSink
    from sluiceway_lakehouse._iceberg_source import IcebergSource

__all__ = ["DeltaSink", "DeltaSource", "IcebergSink", "IcebergSource"]

_MODULES = {
    "DeltaSink": "sluiceway_lakehouse._delta_sink",
    "DeltaSource": "sluiceway_lakehouse._delta_source",
    "IcebergSink": "sluiceway_lakehouse._iceberg_sink",
    "IcebergSource": "sluiceway_lakehouse._iceberg_source",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``delta`` and ``iceberg``."""

    def load_delta() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_lakehouse._delta_sink import DeltaSink
        from sluiceway_lakehouse._delta_source import DeltaSource

        return Connector(source=DeltaSource, sink=DeltaSink)

    def load_iceberg() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_lakehouse._iceberg_sink import IcebergSink
        from sluiceway_lakehouse._iceberg_source import IcebergSource

        return Connector(source=IcebergSource, sink=IcebergSink)

    return [
        Offer("delta", load_delta, "tables of Delta Lake, in columns or records, exactly-once"),
        Offer("iceberg", load_iceberg, "tables of Iceberg, in columns or records, exactly-once"),
    ]
