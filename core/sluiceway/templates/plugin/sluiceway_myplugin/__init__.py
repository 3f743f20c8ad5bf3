"""A source and a sink for Sluiceway.

The classes can be imported from here; the module that has one is loaded when that happens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_myplugin._sink import MyPluginSink as MyPluginSink
    from sluiceway_myplugin._source import MyPluginSource as MyPluginSource

__all__ = ["MyPluginSink", "MyPluginSource"]

_WHERE = {"MyPluginSink": "_sink", "MyPluginSource": "_source"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Return the sources and sinks of this plugin."""

    def load() -> Any:
        from sluiceway.connector import Connector

        from sluiceway_myplugin._sink import MyPluginSink
        from sluiceway_myplugin._source import MyPluginSource

        return Connector(source=MyPluginSource, sink=MyPluginSink)

    # A library that load() needs goes into requires=, and what installs it into extra=: whoever lacks it is told.
    return [Offer("my-plugin", load, "counts, and writes lines into a file")]
