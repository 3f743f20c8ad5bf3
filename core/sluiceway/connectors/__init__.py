"""Sources and sinks that need nothing but Python."""

from sluiceway.connectors.callback import CallbackSink
from sluiceway.connectors.checking import SequenceChecker, SequenceCheckSink, SequenceReport
from sluiceway.connectors.collecting import Collected, CollectSink
from sluiceway.connectors.collection import CollectionSource
from sluiceway.connectors.deadletters import (
    DeadLetterSink,
    dead_letter_files,
    delete_dead_letters,
    read_dead_letters,
)
from sluiceway.connectors.discard import DiscardSink
from sluiceway.connectors.function import FunctionSource
from sluiceway.connectors.generator import GeneratorSource
from sluiceway.connectors.printing import PrintSink

__all__ = [
    "CallbackSink",
    "CollectSink",
    "Collected",
    "CollectionSource",
    "DeadLetterSink",
    "DiscardSink",
    "FunctionSource",
    "GeneratorSource",
    "PrintSink",
    "SequenceCheckSink",
    "SequenceChecker",
    "SequenceReport",
    "dead_letter_files",
    "delete_dead_letters",
    "read_dead_letters",
]
