"""Source that reads several sources one after the other."""

from sluiceway.connector.lib.hybrid.source import HybridSource, SourceSwitch

__all__ = ["HybridSource", "SourceSwitch"]
