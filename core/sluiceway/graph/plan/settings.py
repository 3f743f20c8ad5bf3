"""Settings of a step beyond its function, for the drawings of a plan."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import StateError
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.functions import OutputTag
from sluiceway.functions.state_discovery import visible_descriptors
from sluiceway.state import StateDescriptor, TableSchema
from sluiceway.steps import (
    AsOfJoinStep,
    AsyncStep,
    BroadcastProcessStep,
    ColumnAsOfJoinStep,
    ColumnIntervalJoinStep,
    IntervalJoinStep,
    SourceStep,
    Step,
    TimestampsStep,
    WindowStep,
)
from sluiceway.streamgraph import StreamNode
from sluiceway.windows.durations import shown

__all__ = ["errors_text", "settings_of", "settings_text"]


def settings_of(step: Step) -> dict[str, Any]:
    """Return the settings by name, for programs: texts, numbers, lists or objects of these; durations in ms."""
    found: dict[str, Any] = {}
    match step:
        case WindowStep():
            found = {
                "trigger": _name(step.trigger),
                "evictor": _name(step.evictor),
                "allowed_lateness_ms": step.allowed_lateness_ms or None,
                "late_output": _tag(step.late_tag),
            }
        case IntervalJoinStep() | ColumnIntervalJoinStep():
            how = getattr(step, "how", "inner")
            found = {
                "how": None if how == "inner" else how,
                "bounds_ms": [step.lower, step.upper],
                "left_late_output": _tag(step.left_late),
                "right_late_output": _tag(step.right_late),
            }
        case AsOfJoinStep() | ColumnAsOfJoinStep():
            inner = None if step.how == "left" else step.how
            found = {"how": inner, "tolerance_ms": step.tolerance, "left_late_output": _tag(step.left_late)}
        case AsyncStep():
            found = {
                "order": "ordered" if step.ordered else "unordered",
                "capacity": step.capacity,
                "timeout_ms": step.timeout_ms,
                "retry": _name(step.retry),
            }
        case BroadcastProcessStep():
            found = {"broadcast_state": [descriptor.name for descriptor in step.descriptors]}
        case SourceStep():
            found = {**_of_watermarks(step.strategy), "pushed_down": step.pushed or None}
        case TimestampsStep():
            found = _of_watermarks(step.strategy)
    if step.keyed:
        descriptors = [d for function in step.functions for d in visible_descriptors(function)]
        lives = {d.name: d.ttl.ttl_ms for d in descriptors if d.ttl is not None and d.expires}
        found["time_to_live_ms"] = lives or None
        found["pickled_state"] = list(dict.fromkeys(d.name for d in descriptors if _is_pickled(d))) or None
    return {name: value for name, value in found.items() if value is not None}


def _is_pickled(descriptor: StateDescriptor) -> bool:
    try:
        return TableSchema.of(descriptor).meta.serializer == "pickle"
    except StateError:  # the run will say what is wrong with it
        return False


def settings_text(step: Step) -> list[str]:
    """Return the settings for people: ``trigger CountTrigger(5)``, ``bounds -5s to 5s``."""
    told = []
    for name, value in settings_of(step).items():
        word = name.removesuffix("_ms").replace("_", " ")
        if name == "time_to_live_ms":
            told += [f"{state!r} lives {shown(ms)}" for state, ms in value.items()]
        elif name == "bounds_ms":
            told.append(f"{word} {_signed(value[0])} to {_signed(value[1])}")
        elif name.endswith("_ms"):
            told.append(f"{word} {shown(value)}")
        elif name.endswith("_output"):
            told.append(f"{word} {value!r}")
        elif name in ("how", "order"):
            told.append(value)
        else:
            told.append(f"{word} {', '.join(map(repr, value)) if isinstance(value, list) else value}")
    return told


def errors_text(node: StreamNode) -> list[str]:
    """Return for people how records are skipped on which the function raises; empty if they fail the job."""
    if not node.skips_errors:
        return []
    most = "" if node.max_dead_letters is None else f", {node.max_dead_letters} at most"
    return [f"on error skip{most}"]


def _of_watermarks(strategy: WatermarkStrategy[Any] | None) -> dict[str, Any]:
    if strategy is None:
        return {}
    alignment = strategy.alignment
    return {
        "idleness_ms": strategy.idleness_ms,
        "alignment_group": None if alignment is None else alignment.group,
        "max_drift_ms": None if alignment is None else alignment.max_drift_ms,
    }


def _name(thing: object | None) -> str | None:
    """Return the repr of an object, or the name of its class where it has no repr of its own."""
    if thing is None:
        return None
    return type(thing).__name__ if type(thing).__repr__ is object.__repr__ else repr(thing)


def _tag(tag: OutputTag[Any] | None) -> str | None:
    return None if tag is None else tag.name


def _signed(ms: int) -> str:
    return f"-{shown(-ms)}" if ms < 0 else shown(ms)
