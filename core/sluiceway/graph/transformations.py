"""Transformations: the program as the user wrote it, before anything is derived or checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluiceway.functions import OutputTag
from sluiceway.steps import Step
from sluiceway.streamgraph import ChainingStrategy, PartitionerSpec

__all__ = ["InputRef", "Transformation", "closure", "upstream_of"]


@dataclass(frozen=True, eq=False)
class InputRef:
    """Input of a transformation.

    Attributes:
        upstream: the producer.
        tag: the side output, or None for the main output.
        partitioner: the partitioner, or None: forward where both ends have the same parallelism, else
            rebalance.
        port: index of the input: 0, or 1 for the second of a step with two inputs.
    """

    upstream: Transformation
    tag: OutputTag[Any] | None = None
    partitioner: PartitionerSpec | None = None
    port: int = 0


@dataclass(eq=False)
class Transformation:
    """Step with the user's settings; None means that the user set nothing.

    Attributes:
        step: the step.
        inputs: inputs of the step; several for a union.
        feedback: for the head of an iteration: the inputs that return.
        name: for people.
        description: longer text for people.
        uid: stable name for state.
        parallelism: number of subtasks.
        parallelism_of: steps whose parallelism it has, the highest of them; empty: its own.
        max_parallelism: number of key groups.
        buffer_timeout_ms: time for which a record may stay in an output buffer that is not full.
        slot_sharing_group: the group; None: the group of its inputs if they share one, else ``default``.
        co_location_group: name of a group of steps whose subtasks of the same index must share a slot; or None.
        chaining: its chaining strategy.
        output_type: type of its records; None: taken from the function's hints.
        type_declared: True if the program has declared ``output_type``: records of another one are refused.
        skips_errors: True if it skips records on which its function raises.
        max_dead_letters: the number of them that a subtask skips before it fails; with ``skips_errors``.
        side_output_tags: the side outputs that the program uses.
        location: ``file.py:12`` where the user wrote it, for messages.
    """

    step: Step
    inputs: list[InputRef] = field(default_factory=list)
    feedback: list[InputRef] = field(default_factory=list)
    name: str | None = None
    description: str | None = None
    uid: str | None = None
    parallelism: int | None = None
    parallelism_of: Sequence[Transformation] = ()
    max_parallelism: int | None = None
    buffer_timeout_ms: int | None = None
    slot_sharing_group: str | None = None
    co_location_group: str | None = None
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    output_type: Any = None
    type_declared: bool = False
    skips_errors: bool | None = None
    max_dead_letters: int | None = None
    side_output_tags: list[OutputTag[Any]] = field(default_factory=list)
    location: str = ""

    def label(self) -> str:
        """Return its name and location for messages."""
        shown = self.name or self.step.kind
        return f"{shown!r} ({self.location})" if self.location else repr(shown)


def upstream_of(steps: Iterable[Transformation]) -> set[Transformation]:
    """Return all steps upstream of ``steps``, feedback included, and ``steps`` themselves."""
    return closure(steps, lambda t: [ref.upstream for ref in [*t.inputs, *t.feedback]])


def closure(
    steps: Iterable[Transformation], neighbours: Callable[[Transformation], Iterable[Transformation]]
) -> set[Transformation]:
    """Return ``steps`` and all steps that are reached from them by way of neighbours."""
    reached = set(steps)
    todo = list(reached)
    while todo:
        new = set(neighbours(todo.pop())) - reached
        reached |= new
        todo += new
    return reached
