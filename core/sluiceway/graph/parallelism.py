"""Number of subtasks and key groups of a step."""

from __future__ import annotations

from typing import Final

from sluiceway.steps import SinkStep, SourceStep, Step, WindowStep

__all__ = ["MAX_PARALLELISM_LIMIT", "default_max_parallelism", "subtask_limit"]

MIN_DEFAULT_MAX_PARALLELISM: Final = 128
MAX_PARALLELISM_LIMIT: Final = 32768


def default_max_parallelism(parallelism: int) -> int:
    """Return the default number of key groups of a step: room to grow, and a power of two.

    One and a half times the parallelism, rounded up to a power of two, between 128 and 32768.
    """
    wanted = parallelism + parallelism // 2
    rounded = 1 << max(wanted - 1, 0).bit_length()
    return min(max(rounded, MIN_DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def subtask_limit(step: Step) -> tuple[int | None, str]:
    """Return the highest parallelism that a step can have, None for any, and what limits it, for messages."""
    if isinstance(step, SourceStep):
        return step.source.max_readers, f"source {step.source.name} can be read by"
    if isinstance(step, SinkStep):
        return step.sink.max_writers, f"sink {step.sink.name} can be written by"
    if isinstance(step, WindowStep) and step.all_windows:
        return 1, "the windows of a stream without keys are kept by"
    return None, ""
