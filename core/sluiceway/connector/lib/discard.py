"""Sink that drops all records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.connector import Sink, SinkWriter, WriterContext

__all__ = ["DiscardSink"]


class DiscardSink(Sink[Any]):
    """Sink that drops all records: for benchmarks, and for pipelines that act by side effects."""

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Make a writer that does nothing."""
        return _DiscardWriter()


class _DiscardWriter(SinkWriter[Any]):
    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        pass
