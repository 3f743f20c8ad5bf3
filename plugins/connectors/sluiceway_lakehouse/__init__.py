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

# By name: the module that has it, and the extra that it needs.
_MODULES = {
    "DeltaSink": ("_delta_sink", "delta"),
    "DeltaSource": ("_delta_source", "delta"),
    "IcebergSink": ("_iceberg_sink", "iceberg"),
    "IcebergSource": ("_iceberg_source", "iceberg"),
}

# Of both extras. The libraries of the tables are looked for when a source or a sink is made.
_COLUMNS = ("narwhals", "numpy", "pyarrow")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _MODULES[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _COLUMNS:
            raise
        from sluiceway.errors import MissingExtraError
        from sluiceway.util.install_hints import install_command

        raise MissingExtraError(f"{name} needs {missing}: {install_command(f'sluiceway[{extra}]')}") from error


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
        Offer(
            "delta",
            load_delta,
            "tables of Delta Lake, in columns or records, exactly-once",
            requires=("deltalake", *_COLUMNS),
            extra="delta",
        ),
        Offer(
            "iceberg",
            load_iceberg,
            "tables of Iceberg, in columns or records, exactly-once",
            requires=("pyiceberg", *_COLUMNS),
            extra="iceberg",
        ),
    ]
