"""Contract of connectors: sources and sinks, and base classes for sinks with commits."""

from sluiceway.connector.offered import Connector
from sluiceway.connector.sinks import (
    CommittingSinkWriter,
    DeliveryGuarantee,
    Sink,
    SinkWriter,
    WriterContext,
)
from sluiceway.connector.sources import (
    END_OF_INPUT,
    Alternatives,
    Boundedness,
    Comparison,
    EndOfInput,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Split,
)
from sluiceway.connector.two_phase_commit import IdempotentSink, TwoPhaseCommitSink
from sluiceway.connector.waits import Wait

__all__ = [
    "END_OF_INPUT",
    "Alternatives",
    "Boundedness",
    "CommittingSinkWriter",
    "Comparison",
    "Connector",
    "DeliveryGuarantee",
    "EndOfInput",
    "Enumerator",
    "EnumeratorContext",
    "IdempotentSink",
    "Poll",
    "Reader",
    "ReaderContext",
    "SimpleEnumerator",
    "SimpleReader",
    "Sink",
    "SinkWriter",
    "Source",
    "Split",
    "TwoPhaseCommitSink",
    "Wait",
    "WriterContext",
]
