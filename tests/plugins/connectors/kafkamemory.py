"""Read a topic into a sink that takes one batch and then blocks, until killed.

Arguments: servers, topic, number of partitions. Each partition begins at an offset, as in a restored job: nothing
has to be asked first, and the first request of the client is for all of them at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import sluiceway as sw
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway_kafka import KafkaOffsets, KafkaSource


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
    servers, topic, partitions = sys.argv[1:]
    start = KafkaOffsets.partitions({(topic, number): 0 for number in range(int(partitions))})
    flow = sw.Pipeline("blocked")
    flow.source(KafkaSource(servers, topic, deserializer="bytes", start=start)).sink(Blocked())
    flow.run()
