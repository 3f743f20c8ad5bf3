"""Files of text, CSV, JSON lines and Parquet: ``FilesSource`` and ``FilesSink``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_files._sink import FilesSink
    from sluiceway_files._source import FilesSource

__all__ = ["FilesSink", "FilesSource"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from sluiceway.util.name_hints import hint_for, refuse_in_module

        refuse_in_module(__name__, name, __all__, hint_for(__name__, name))
    if name == "FilesSource":
        from sluiceway_files._source import FilesSource

        return FilesSource
    from sluiceway_files._sink import FilesSink

    return FilesSink


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``files``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_files._sink import FilesSink
        from sluiceway_files._source import FilesSource

        return Connector(source=FilesSource.of, sink=FilesSink.of)

    return [Offer("files", load, "text, CSV, JSON lines and Parquet files, local or wherever fsspec reaches")]
