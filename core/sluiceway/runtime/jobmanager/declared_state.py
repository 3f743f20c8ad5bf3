"""Keyed state that the steps of a job declare, determined before it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluiceway.columns.state_names import BY_KEY
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.functions.state_discovery import visible_descriptors
from sluiceway.graph import JobGraph
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators import OperatorContext, build_operators, own_copy
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.opened_functions import may_ask_for_state
from sluiceway.operators.windows.state_layout import takes_over
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateTable,
    TableSchema,
)
from sluiceway.steps import WindowStep
from sluiceway.streamgraph import StreamNode

__all__ = ["Declared", "declared_states"]


@dataclass(slots=True)
class Declared:
    """Declared state of a step.

    Attributes:
        schemas: by name of the state.
        complete: whether that is all that the step declares before its first record.
        own: whether a function of the user's may declare more later.
        problem: why the step could not be asked.
        lazy: whether the step may ask for other states later, or take them over, going by their names.
        later: states that the step asks for once it has more than goes into memory.
    """

    schemas: dict[str, TableSchema] = field(default_factory=dict)
    complete: bool = False
    own: bool = False
    problem: str = ""
    lazy: Callable[[str], bool] | None = None
    later: frozenset[str] = frozenset()


def declared_states(
    graph: JobGraph, settings: Settings, services: Services, *, open_functions: bool
) -> dict[str, Declared]:
    """Return the declared state by uid of a step with keyed state.

    Args:
        graph: the job.
        settings: of the run.
        services: gives the clock and the memory backend.
        open_functions: also call the users' ``open`` and ``initialize_state``, on copies. Without, of such
            functions only those descriptors are found that are attributes of theirs, or global names in ``open``.
    """
    found = {}
    for node in (node for vertex in graph.vertices for node in vertex.nodes if node.step.keyed):
        mine = [f for f in node.step.functions if may_ask_for_state(f)]  # opening the step runs their code
        if mine and not open_functions:
            descriptors = (d for function in mine for d in visible_descriptors(function))
            schemas: dict[str, TableSchema] = {}
            for descriptor in descriptors:
                with suppress(Exception):  # the run reports the error
                    schemas[descriptor.name] = TableSchema.of(descriptor)
            found[node.uid] = Declared(schemas, own=True)
        else:
            found[node.uid] = _opened(graph, node, settings, services, bool(mine))
        if node.step.kind.startswith("columns"):
            known = found[node.uid]
            known.later = frozenset(name for name, rest in BY_KEY.items() if rest in known.schemas)
        if isinstance(node.step, WindowStep):
            # Its trigger and function may have state of their own, and windows have several layouts.
            found[node.uid].lazy = partial(takes_over, node.step)
    return found


def _opened(graph: JobGraph, node: StreamNode, settings: Settings, services: Services, own: bool) -> Declared:
    # In memory, whatever the job's backend is: nothing is restored, and only the declarations count.
    backend = _Recording(services.state_backend("memory"))
    problem = ""
    try:
        # A copy: opening a function may change it, and the job is still to run.
        copy = own_copy(node, 1)

        def context(node: StreamNode) -> OperatorContext:
            return OperatorContext(
                node=node,
                job_name=graph.job_name,
                subtask=0,
                attempt=0,
                key_groups=KeyGroupRange(0, node.max_parallelism),
                clock=services.clock,
                state_backend=backend,
                wake=_nothing,
                settings=settings,
            )

        (operator,) = build_operators([copy], [], context, {})
        if not isinstance(operator, KeyedOperator):
            return Declared(own=own)
        try:
            operator.initialize(())
            operator.open()
        finally:
            operator.close()
    except Exception as error:  # any exception of a user's function that runs outside its environment
        problem = f"{type(error).__name__}: {error}"
    return Declared(backend.found, not problem, own, problem)


def _nothing() -> None:
    """Do nothing."""


class _Recording(StateBackend):
    def __init__(self, inner: StateBackend) -> None:
        self.found: dict[str, TableSchema] = {}
        self._inner = inner

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        return _RecordingKeyed(self._inner.create_keyed(context), self.found)


class _RecordingKeyed(KeyedStateBackend):
    expires_in_compaction = True

    def __init__(self, inner: KeyedStateBackend, found: dict[str, TableSchema]) -> None:
        self._inner = inner
        self._found = found

    def table(self, descriptor: StateDescriptor) -> StateTable:
        self._found[descriptor.name] = TableSchema.of(descriptor)
        return self._inner.table(descriptor)

    def snapshot(self) -> KeyedSnapshot:
        return self._inner.snapshot()

    def restore(self, snapshots: Any) -> None:
        self._inner.restore(snapshots)

    def close(self) -> None:
        self._inner.close()
