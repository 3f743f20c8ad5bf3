"""Sources and sinks that need nothing but Python."""

from sluiceway.connector.lib.assertion import SequenceChecker, SequenceCheckSink, SequenceReport
from sluiceway.connector.lib.callback import CallbackSink
from sluiceway.connector.lib.collect import Collected, CollectSink
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.connector.lib.dead_letter_files import (
    DeadLetterSink,
    dead_letter_files,
    delete_dead_letters,
    read_dead_letters,
)
from sluiceway.connector.lib.discard import DiscardSink
from sluiceway.connector.lib.function import FunctionSource
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.connector.lib.hybrid import HybridSource, SourceSwitch
from sluiceway.connector.lib.print import PrintSink

__all__ = [
    "CallbackSink",
    "CollectSink",
    "Collected",
    "CollectionSource",
    "DeadLetterSink",
    "DiscardSink",
    "FunctionSource",
    "GeneratorSource",
    "HybridSource",
    "PrintSink",
    "SequenceCheckSink",
    "SequenceChecker",
    "SequenceReport",
    "SourceSwitch",
    "dead_letter_files",
    "delete_dead_letters",
    "read_dead_letters",
]
