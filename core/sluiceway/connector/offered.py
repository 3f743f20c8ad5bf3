"""Offer of a connector plugin under a name: a source, a sink, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluiceway.connector.sinks import Sink
from sluiceway.connector.sources import Source

__all__ = ["Connector"]


@dataclass(frozen=True)
class Connector:
    """Factory of a connector's source and sink, which a connector plugin's offer loads.

    Attributes:
        source: makes a source from the connector's own arguments, or None if it has none.
        sink: makes a sink, or None if it has none.
    """

    source: Callable[..., Source[Any]] | None = None
    sink: Callable[..., Sink[Any]] | None = None
