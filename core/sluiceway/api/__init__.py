"""What people write pipelines with. :mod:`sluiceway.api.handle` is apart: it needs asyncio, most runs do not."""

from sluiceway.api.broadcast import BroadcastConnectedStream, BroadcastStream
from sluiceway.api.connected import ConnectedStreams
from sluiceway.api.iteration import IterativeStream
from sluiceway.api.keyed import KeyedStream
from sluiceway.api.pipeline import Pipeline
from sluiceway.api.sink import DataStreamSink
from sluiceway.api.stream import DataStream

__all__ = [
    "BroadcastConnectedStream",
    "BroadcastStream",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "IterativeStream",
    "KeyedStream",
    "Pipeline",
]
