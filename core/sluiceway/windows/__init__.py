"""Window assigners, triggers and evictors, built-in ones and their contracts.

Durations are timedeltas, whole numbers of ms, or texts such as ``"10s"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sluiceway.windows.assigners import (
    CumulativeEventTimeWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from sluiceway.windows.base import (
    GLOBAL_WINDOW,
    AssignerContext,
    Evictor,
    EvictorContext,
    GlobalWindow,
    MergingWindowAssigner,
    Timestamped,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    Window,
    WindowAssigner,
)
from sluiceway.windows.continuous import ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger
from sluiceway.windows.evictors import CountEvictor, DeltaEvictor, TimeEvictor
from sluiceway.windows.sessions import (
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
)
from sluiceway.windows.triggers import (
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)

__all__ = [
    "GLOBAL_WINDOW",
    "AssignerContext",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "CumulativeEventTimeWindows",
    "DeltaEvictor",
    "DeltaTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "GlobalWindow",
    "GlobalWindows",
    "MergingWindowAssigner",
    "NeverTrigger",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "Timestamped",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
]

if not TYPE_CHECKING:  # a type checker would take it for leave to import anything

    def __getattr__(name: str) -> NoReturn:
        from sluiceway.util.name_hints import refuse_in_module

        refuse_in_module(__name__, name, __all__)
