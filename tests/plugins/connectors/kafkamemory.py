"""Read a topic into a sink that takes one batch and then blocks, until killed. Arguments: servers, topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import sluiceway as sw
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway_kafka import KafkaSource


class Blocked(Sink[Any]):
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return BlockedWriter()


class BlockedWriter(SinkWriter[Any]):
    def __init__(self) -> None:
        self._full = False

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._full = True
        print("blocked", flush=True)

    def blocked(self) -> Wait | None:
        return Wait() if self._full else None


if __name__ == "__main__":
    flow = sw.Pipeline("blocked")
    flow.source(KafkaSource(sys.argv[1], sys.argv[2], deserializer="bytes")).sink(Blocked())
    flow.run()
