"""Stream graph: a pipeline as data, for plans to show and engines to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from sluiceway.functions import OutputTag
from sluiceway.steps import Step

__all__ = ["ChainingStrategy", "PartitionerSpec", "StreamEdge", "StreamGraph", "StreamNode"]


class ChainingStrategy(Enum):
    """Permission of a step to run in one task with its predecessor."""

    ALWAYS = "always"
    HEAD = "head"
    NEVER = "never"


class PartitionerSpec(msgspec.Struct, frozen=True):
    """Partitioner of an edge.

    Attributes:
        name: ``forward``, ``rebalance``, ``rescale``, ``shuffle``, ``hash``, ``broadcast``, ``global``,
            ``custom``, or the name of a partitioner plugin.
        key: for ``hash`` and ``custom``: what to compute from a record.
        select: for ``custom``: ``select(key, consumers) -> index of the consumer``.
        columns: for ``hash``: names of the columns that rows are sent with, as the consumer reads no others; None:
            all.
        skips: for ``hash``: whether the consumer skips records on which a function raises, its ``key`` included.
        checks: for ``hash``: whether keys are computed for a single consumer, too, as its step computes none.
    """

    name: str
    key: Any = None
    select: Callable[[Any, int], int] | None = None
    columns: tuple[str, ...] | None = None
    skips: bool = False
    checks: bool = False


class StreamNode(msgspec.Struct, frozen=True):
    """One step of the program.

    Attributes:
        id: position in the order of building, unique.
        uid: stable name for state: the user's, or derived from the structure.
        uid_given: whether the user gave it.
        name: what people see.
        step: what it does.
        parallelism: number of subtasks.
        max_parallelism: number of key groups; a bound for parallelism, for ever.
        buffer_timeout_ms: how long a record may wait for company on the way out; 0: while the task has more to do
            at once, for 5 ms at most; -1: until a batch is full.
        slot_sharing_group: steps of one group may share slots.
        chaining: its chaining strategy.
        output_type: type of its records where it is known, else None.
        location: ``file.py:12`` where the user wrote it, for messages; may be empty.
        co_location_group: subtask i of each step of the group runs in the same slot; None: in none.
        skips_errors: whether it skips records on which its function raises.
        max_dead_letters: how many of them a subtask skips before it fails; None: any number.
        type_declared: whether the program has declared ``output_type``: records of another one are refused.
        max_parallelism_given: whether somebody chose ``max_parallelism``; if not, that of saved state goes before.
        parallelism_given: whether the program chose ``parallelism``; if not, it follows that of the job.
        description: longer text for people beside the name, or None.
    """

    id: int
    uid: str
    uid_given: bool
    name: str
    step: Step
    parallelism: int
    max_parallelism: int
    buffer_timeout_ms: int = 0
    slot_sharing_group: str = "default"
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    output_type: Any = None
    location: str = ""
    co_location_group: str | None = None
    skips_errors: bool = False
    max_dead_letters: int | None = None
    max_parallelism_given: bool = True
    type_declared: bool = False
    parallelism_given: bool = False
    description: str | None = None


class StreamEdge(msgspec.Struct, frozen=True):
    """Records go from ``source`` to ``target`` (node ids).

    Attributes:
        id: unique within the graph, stable for one program.
        source: id of the producing node.
        target: id of the consuming node.
        partitioner: how records find their consumer.
        tag: the side output it carries, or None for the main output.
        feedback: whether it closes a loop.
        port: which input of the target it feeds: 0, or 1 for the second of a step with two inputs.
    """

    id: str
    source: int
    target: int
    partitioner: PartitionerSpec
    tag: OutputTag[Any] | None = None
    feedback: bool = False
    port: int = 0


@dataclass(frozen=True)
class StreamGraph:
    """A whole program. Nodes are in topological order, feedback edges apart.

    ``left_out`` are the uids of the program of which this is a replay: it leaves behind the state of sources,
    sinks and steps that it does not run, and records in flight. Empty: it is no replay.
    """

    job_name: str
    nodes: tuple[StreamNode, ...]
    edges: tuple[StreamEdge, ...]
    chaining: bool = True
    left_out: frozenset[str] = frozenset()
    _by_id: dict[int, StreamNode] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {n.id: n for n in self.nodes})

    def node(self, node_id: int) -> StreamNode:
        """Return the node with that id. Raises KeyError."""
        return self._by_id[node_id]

    def in_edges(self, node_id: int) -> Iterator[StreamEdge]:
        """Edges into a node, in the order of its inputs."""
        return (e for e in self.edges if e.target == node_id)

    def out_edges(self, node_id: int) -> Iterator[StreamEdge]:
        """Edges out of a node."""
        return (e for e in self.edges if e.source == node_id)
