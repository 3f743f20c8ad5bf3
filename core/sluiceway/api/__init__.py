"""Public classes that pipelines are written with: streams, windows, joins, job handles."""

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
