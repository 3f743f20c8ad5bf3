"""Keys with most of the records of a step, as its subtasks have counted them for some seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sluiceway.errors import ConfigurationError, choose
from sluiceway.monitoring.infos import JobDescription

__all__ = [
    "MOST_SECONDS",
    "HotKey",
    "KeySample",
    "StepKeyCount",
    "StepKeys",
    "SubtaskLoad",
    "check_key_sampling",
    "hottest_key",
    "step_keys",
    "vertices_of",
]

MOST_SECONDS: Final = 60.0
_SHOWN: Final = 50


class HotKey(msgspec.Struct, frozen=True):
    """One key as text, with the number of its records; that may be too low by the ``error`` of the sample."""

    key: str
    records: int


class KeySample(msgspec.Struct, frozen=True):
    """Keys of one subtask.

    Attributes:
        worker: name of the worker process; empty in one process.
        vertex: id of the job vertex.
        subtask: index of the subtask.
        step: name of the step that is keyed.
        seconds: time for which records were counted.
        records: number of records that were counted.
        error: records by which the number of a key may be too low.
        keys: those with most records, most first.
    """

    worker: str
    vertex: int
    subtask: int
    step: str
    seconds: float
    records: int
    error: int
    keys: list[HotKey]


class SubtaskLoad(msgspec.Struct, frozen=True):
    """Records of one subtask in the time of the sample."""

    subtask: int
    records: int


class StepKeyCount(msgspec.Struct, frozen=True):
    """One key of a step.

    Attributes:
        key: its ``repr``, shortened.
        subtask: index of the subtask that it belongs to.
        records: number of its records, at least.
        share: of all records of the step, 0 to 1.
    """

    key: str
    subtask: int
    records: int
    share: float


class StepKeys(msgspec.Struct, frozen=True):
    """Hottest keys of a step.

    Attributes:
        vertex: id of its job vertex.
        step: its name.
        seconds: time for which records were counted.
        records: number of records that were counted.
        error: records by which the number of a key may be too low.
        skew: 100 x standard deviation / mean of the records of its subtasks.
        keys: those with most records, most first.
        subtasks: records by subtask.
    """

    vertex: int
    step: str
    seconds: float
    records: int
    error: int
    skew: float
    keys: list[StepKeyCount]
    subtasks: list[SubtaskLoad]


def check_key_sampling(seconds: float) -> None:
    """Raise ConfigurationError if keys are not counted for so long."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigurationError(f"keys are counted for up to {MOST_SECONDS:g} s, not for {seconds:g} s")


def vertices_of(description: JobDescription, step: str | None) -> list[int]:
    """Return the ids of the vertices that a name means: of a task, or of one of its steps; None: all, as ``[]``.

    Raises:
        UnknownNameError: nothing has that name; says what there is.
    """
    if step is None:
        return []
    found = [
        vertex.id
        for vertex in description.vertices
        if step in (vertex.name, vertex.uid) or any(step in (one.name, one.uid) for one in vertex.steps)
    ]
    if not found:
        raise choose("step", step, [one.name for vertex in description.vertices for one in vertex.steps])
    return found


def hottest_key(samples: Iterable[KeySample], vertex: int) -> StepKeyCount | None:
    """Return the key of a vertex with most records; None: none was counted."""
    for found in step_keys(samples, 1):
        if found.vertex == vertex and found.keys:
            return found.keys[0]
    return None


def step_keys(samples: Iterable[KeySample], shown: int = _SHOWN) -> list[StepKeys]:
    """Combine the samples of subtasks by step, in the order of the plan.

    Args:
        samples: of one request.
        shown: number of keys of each step, at most.
    """
    by_step: dict[tuple[int, str], list[KeySample]] = {}
    for sample in samples:
        by_step.setdefault((sample.vertex, sample.step), []).append(sample)
    return [_of_step(of, shown) for _, of in sorted(by_step.items())]


def _of_step(samples: list[KeySample], shown: int) -> StepKeys:
    total = sum(s.records for s in samples)
    keys = [
        StepKeyCount(k.key, s.subtask, k.records, k.records / total if total else 0.0)
        for s in samples
        for k in s.keys
    ]
    mean = total / len(samples)
    deviation = (sum((s.records - mean) ** 2 for s in samples) / len(samples)) ** 0.5
    return StepKeys(
        vertex=samples[0].vertex,
        step=samples[0].step,
        seconds=max(s.seconds for s in samples),
        records=total,
        error=max(s.error for s in samples),
        skew=100 * deviation / mean if mean else 0.0,
        keys=sorted(keys, key=lambda k: -k.records)[:shown],
        subtasks=[SubtaskLoad(s.subtask, s.records) for s in sorted(samples, key=lambda s: s.subtask)],
    )
