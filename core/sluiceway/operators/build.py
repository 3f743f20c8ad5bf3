"""Construction of operators from the steps of a chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from msgspec.structs import replace

from sluiceway.elements import Batch, Element
from sluiceway.errors import GraphError
from sluiceway.functions import DEAD_LETTERS, FunctionObject
from sluiceway.functions.base import note_output_tags
from sluiceway.functions.life import unopened
from sluiceway.isolation import all_unchangeable, isolated_all, look_unchangeable, separated
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.declared_results import check_of_results
from sluiceway.operators.fused import FusedOperator
from sluiceway.operators.fused_loops import MAX_FLAT_MAPS
from sluiceway.operators.skipped_records import dead_letter_output
from sluiceway.steps import (
    AsOfJoinStep,
    AsyncStep,
    BatchProcessStep,
    BranchStep,
    BroadcastProcessStep,
    CoFlatMapStep,
    ColumnAsOfJoinStep,
    ColumnDistinctStep,
    ColumnIntervalJoinStep,
    ColumnLookupStep,
    ColumnOverStep,
    ColumnRunningStep,
    ColumnSessionStep,
    ColumnTransformStep,
    ColumnWindowStep,
    CoMapStep,
    CoProcessStep,
    FlatMapStep,
    IntervalJoinStep,
    IterationHeadStep,
    KeyedAggregateStep,
    KeyedBatchProcessStep,
    KeyedBranchStep,
    KeyedCountStep,
    KeyedFilterStep,
    KeyedFlatMapStep,
    KeyedMapStep,
    KeyedProcessStep,
    KeyedReduceStep,
    ProcessStep,
    SinkStep,
    SourceStep,
    Step,
    TimestampsStep,
    ToColumnsStep,
    ToRecordsStep,
    WindowStep,
)
from sluiceway.streamgraph import StreamEdge, StreamNode
from sluiceway.util.allocator import keep_freed_memory

__all__ = ["build_operators", "copied_function", "own_copy"]

# Imported when a job has such a step: a job has few kinds, and all of them take a tenth of the time to start.
_OPERATORS: dict[type[Step], str] = {
    ProcessStep: "process:ProcessOperator",
    BranchStep: "branch:BranchOperator",
    KeyedBranchStep: "branch:KeyedBranchOperator",
    BatchProcessStep: "batches:BatchProcessOperator",
    KeyedBatchProcessStep: "batches:KeyedBatchProcessOperator",
    KeyedMapStep: "keyed_transforms:KeyedRecordOperator",
    KeyedFlatMapStep: "keyed_transforms:KeyedRecordOperator",
    KeyedFilterStep: "keyed_transforms:KeyedRecordOperator",
    KeyedReduceStep: "keyed:KeyedReduceOperator",
    KeyedAggregateStep: "keyed:KeyedAggregateOperator",
    KeyedCountStep: "keyed:KeyedCountOperator",
    KeyedProcessStep: "process:KeyedProcessOperator",
    IntervalJoinStep: "joins:IntervalJoinOperator",
    AsOfJoinStep: "joins:AsOfJoinOperator",
    BroadcastProcessStep: "broadcast:make_broadcast_operator",
    CoMapStep: "co:make_co_operator",
    CoFlatMapStep: "co:make_co_operator",
    CoProcessStep: "co:make_co_operator",
    IterationHeadStep: "feedback:IterationHeadOperator",
    AsyncStep: "asynchronous:AsyncOperator",
    SinkStep: "sink:SinkOperator",
    SourceStep: "source:SourceOperator",
    TimestampsStep: "timestamps:TimestampsOperator",
    ToColumnsStep: "columns.conversion:ToColumnsOperator",
    ToRecordsStep: "columns.conversion:ToRecordsOperator",
    ColumnWindowStep: "columns.windows:ColumnWindowOperator",
    ColumnDistinctStep: "columns.distinct:ColumnDistinctOperator",
    ColumnRunningStep: "columns.running:ColumnRunningOperator",
    ColumnSessionStep: "columns.sessions:ColumnSessionOperator",
    ColumnOverStep: "columns.over:ColumnOverOperator",
    ColumnAsOfJoinStep: "columns.asof_join:ColumnAsOfJoinOperator",
    ColumnIntervalJoinStep: "columns.interval_join:ColumnIntervalJoinOperator",
    ColumnLookupStep: "columns.lookup:ColumnLookupOperator",
    ColumnTransformStep: "columns.transform:ColumnTransformOperator",
    WindowStep: "windows.factory:make_window_operator",
}


@cache
def _maker(place: str) -> Callable[[OperatorContext], Operator]:
    module, _, name = place.partition(":")
    made: Callable[[OperatorContext], Operator] = getattr(import_module(f"sluiceway.operators.{module}"), name)
    return made


class EdgeOutput(Protocol):
    """Edge that leaves the chain."""

    def emit(self, batch: Batch[Any]) -> None:
        """Take a batch."""

    @property
    def control(self) -> Callable[[Element], None]:
        """Send a control element."""


class Fanout:
    """Output with any number of receivers per tag.

    Args:
        operator: the operator whose output it is.
        check: check of the values of the main output against a declared type; None: no type is declared.
    """

    def __init__(self, operator: Operator, check: Callable[[Iterable[Any]], None] | None = None) -> None:
        self._operator = operator
        self._check = check
        self.main: list[Callable[[Batch[Any]], None]] = []
        self.sides: dict[str, list[Callable[[Batch[Any]], None]]] = {}
        self.controls: list[Callable[[Element], None]] = []

    def emit(self, batch: Batch[Any]) -> None:
        """Send a batch to all receivers of the main output; each owns its records."""
        operator = self._operator
        if self._check is not None:
            self._check(batch.values)
        if operator.trusts and not look_unchangeable(batch.values):
            operator.distrust()
            batch = Batch(separated(batch.values), batch.timestamps, batch.keys)
        if len(self.main) == 1:
            self.main[0](batch)
        else:
            self._to_each(self.main, batch, free=operator.shares or operator.trusts)

    def side(self, tag: str, batch: Batch[Any]) -> None:
        """Send a batch to all receivers of a side output; drop it if there is none."""
        self._to_each(self.sides.get(tag, ()), batch, free=self._operator.shares)

    def _to_each(
        self, receivers: Sequence[Callable[[Batch[Any]], None]], batch: Batch[Any], *, free: bool
    ) -> None:
        if not free and len(receivers) > 1 and not all_unchangeable(batch.values):
            for receive in receivers[:-1]:
                # Before anybody has the records: the first may change them, or keep them and change them later.
                receive(Batch(isolated_all(batch.values), batch.timestamps, batch.keys))
        else:
            for receive in receivers[:-1]:
                receive(batch)
        for receive in receivers[-1:]:
            receive(batch)

    def control(self, element: Element) -> None:
        """Send a control element to every receiver once."""
        for receive in self.controls:
            receive(element)

    def add(self, tag: str | None, emit: Callable[[Batch[Any]], None], control: Callable[[Element], None]) -> None:
        """Add a receiver."""
        (self.main if tag is None else self.sides.setdefault(tag, [])).append(emit)
        # Once per receiver, though it may receive several outputs. Bound methods of one object are equal.
        if control not in self.controls:
            self.controls.append(control)


def own_copy(node: StreamNode, subtask: int) -> StreamNode:
    """Return the node for one subtask of several, as subtasks must not share function objects.

    Subtask 0 keeps the user's own objects, so that a pipeline at parallelism 1 works on what the user holds.

    Raises:
        GraphError: a function object cannot be copied.
    """
    if subtask == 0:
        return node

    def own(function: FunctionObject) -> FunctionObject:
        why = f"runs {node.parallelism} times" if node.parallelism > 1 else "may be restarted"
        return copied_function(function, node, why)

    step = node.step.with_own_functions(own)
    return node if step is node.step else replace(node, step=step)


def copied_function(function: FunctionObject, node: StreamNode, why: str) -> FunctionObject:
    """Return a copy of a function object of a node, without what a run has bound.

    Args:
        function: is copied.
        node: its step, which errors name.
        why: the reason for the copy: "runs 2 times".

    Raises:
        GraphError: it cannot be copied.
    """
    try:
        return copy.deepcopy(unopened(function))
    except Exception as error:
        raise GraphError(
            f"step {node.name!r} {why} but its {type(function).__name__} cannot be copied ({error}): "
            "create what cannot be copied in open()"
        ) from error


def build_operators(
    nodes: Sequence[StreamNode],
    edges: Sequence[StreamEdge],
    context: Callable[[StreamNode], OperatorContext],
    outside: Mapping[int, Sequence[tuple[str | None, EdgeOutput]]],
) -> list[Operator]:
    """Create the operators of a chain, head first, connected to one another and to the outputs.

    Args:
        nodes: the chained nodes in topological order.
        edges: the edges between them.
        context: makes the context of a node.
        outside: per node id, the outputs that leave the chain, each with its side-output tag or None.

    Returns:
        the operators in topological order. Their outputs are :class:`Fanout` objects.
    """
    if any(tag not in (None, DEAD_LETTERS.name) for outputs in outside.values() for tag, _ in outputs):
        # Who receives a side output has its tag, in another process maybe. Here the function may not have made its
        # own yet, and operators decide now whether the type hint holds for all records.
        note_output_tags()
    operators: list[Operator] = []
    heads: dict[int, Operator] = {}
    groups: list[list[StreamNode]] = []
    for group in _groups(nodes, edges, outside):
        step = group[0].step
        operator: Operator
        if step.record_wise:
            operator = FusedOperator([context(n) for n in group])
        elif type(step) in _OPERATORS:
            place = _OPERATORS[type(step)]
            if place.startswith("columns."):
                # Arrays are freed with their batch. glibc returns the memory each time, and each page of the next
                # array is a fault.
                keep_freed_memory()
            operator = _maker(place)(context(group[0]))
        else:
            raise GraphError(f"step {group[0].name!r}: this engine cannot run a {step.kind!r} step")
        heads[group[0].id] = operator
        groups.append(group)
        operators.append(operator)
    for group, operator in zip(groups, operators, strict=True):
        fanout = Fanout(operator, check_of_results(group[-1]))
        for node in group:
            for edge in edges:
                if edge.source == node.id and edge.target in heads:
                    target = heads[edge.target]
                    tag = None if edge.tag is None else edge.tag.name
                    fanout.add(_output_name(tag, node, group), target.process, target.control)
            for tag, output in outside.get(node.id, ()):
                fanout.add(_output_name(tag, node, group), output.emit, output.control)
        operator.output = fanout
    return operators


def _output_name(tag: str | None, node: StreamNode, group: Sequence[StreamNode]) -> str | None:
    """Return the name by which an operator knows an output of one of its steps."""
    return dead_letter_output(node, group[-1]) if tag == DEAD_LETTERS.name else tag


def _groups(
    nodes: Sequence[StreamNode], edges: Sequence[StreamEdge], outside: Mapping[int, Any]
) -> Iterator[list[StreamNode]]:
    """Return runs of record-wise nodes from which only dead letters branch off, and others by themselves."""
    by_id = {n.id: n for n in nodes}
    taken: set[int] = set()
    for node in nodes:
        if node.id in taken:
            continue
        group = [node]
        flat_maps = int(isinstance(node.step, FlatMapStep))
        # What a step with a declared type emits is looked at between two operators.
        while (
            group[-1].step.record_wise
            and not group[-1].type_declared
            and all(t == DEAD_LETTERS.name for t, _ in outside.get(group[-1].id, ()))
        ):
            out = [
                e for e in edges if e.source == group[-1].id and (e.tag is None or e.tag.name != DEAD_LETTERS.name)
            ]
            if len(out) != 1 or not by_id[out[0].target].step.record_wise:
                break
            following = by_id[out[0].target]
            flat_maps += isinstance(following.step, FlatMapStep)
            if flat_maps > MAX_FLAT_MAPS:
                break
            group.append(following)
        taken.update(n.id for n in group)
        yield group
