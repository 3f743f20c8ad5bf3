"""Drives a join by itself: records to either input, watermarks, snapshots, at any parallelism."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.elements import MAX_WATERMARK, Batch, Element, Watermark
from sluiceway.keygroups import KeyGroupRange, key_group, subtask_for_key_group
from sluiceway.operators import Operator, OperatorContext, OperatorSnapshot, TimedOperator
from sluiceway.operators.joins import AsOfJoinOperator, IntervalJoinOperator
from sluiceway.plugins import default_manager
from sluiceway.state import VOID_NAMESPACE, StateDescriptor, StateTable
from sluiceway.steps import IntervalJoinStep
from sluiceway.streamgraph import StreamNode

GROUPS = 8


class Copies(MutableMapping[Any, Any]):
    """What a backend on disk gives: what is changed and not assigned again is lost."""

    def __init__(self, inner: MutableMapping[Any, Any]) -> None:
        self._inner = inner

    def __getitem__(self, key: Any) -> Any:
        return copy.deepcopy(self._inner[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._inner[key] = copy.deepcopy(value)

    def __delitem__(self, key: Any) -> None:
        del self._inner[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


def give_copies(backend: Any) -> None:
    """Have the tables of a backend give copies."""
    make = backend.table

    def table(descriptor: StateDescriptor) -> StateTable:
        made = make(descriptor)
        if not hasattr(made, "gives_copies"):
            entries = made.entries
            made.entries = lambda namespace=VOID_NAMESPACE: Copies(entries(namespace))
            made.gives_copies = True
        return made

    backend.table = table


class Drive:
    """A join in several subtasks.

    Records are triples ``(key, timestamp, payload)``; the step's key selectors take the first. With ``copies``
    its state is as on disk.
    """

    def __init__(
        self, step: Any, parallelism: int = 1, restored: Sequence[OperatorSnapshot] = (), copies: bool = False
    ) -> None:
        self.records: list[tuple[Any, int]] = []
        self.sides: dict[str, list[Any]] = {}
        self.controls: list[Element] = []
        self.batches = 0
        self.clock = VirtualClock(0)
        make = IntervalJoinOperator if isinstance(step, IntervalJoinStep) else AsOfJoinOperator
        backend = default_manager().services(self.clock).state_backend("memory")
        node = StreamNode(0, "join", True, "join", step, parallelism, GROUPS)
        self.operators: list[Operator] = []
        for subtask in range(parallelism):
            operator = make(
                OperatorContext(
                    node=node,
                    job_name="test",
                    subtask=subtask,
                    attempt=0,
                    key_groups=KeyGroupRange.of_subtask(subtask, parallelism, GROUPS),
                    clock=self.clock,
                    state_backend=backend,
                    wake=lambda: None,
                )
            )
            operator.output = self
            operator.initialize_state(list(restored))
            if copies:
                give_copies(operator.backend)
            operator.open()
            self.operators.append(operator)

    # ---- the output ------------------------------------------------------------------------------------------

    def emit(self, batch: Batch[Any]) -> None:
        assert batch.values, "an empty batch"
        assert batch.timestamps is not None
        self.batches += 1
        self.records += zip(batch.values, batch.timestamps, strict=True)

    def side(self, tag: str, batch: Batch[Any]) -> None:
        assert batch.timestamps is not None
        self.sides.setdefault(tag, []).extend(zip(batch.values, batch.timestamps, strict=True))

    def control(self, element: Element) -> None:
        self.controls.append(element)

    # ---- the input -------------------------------------------------------------------------------------------

    def feed(self, port: int, records: Iterable[tuple[Any, int, Any]], *, with_keys: bool = False) -> Drive:
        parts: dict[int, list[tuple[Any, int, Any]]] = {}
        for record in records:
            owner = subtask_for_key_group(key_group(record[0], GROUPS), len(self.operators), GROUPS)
            parts.setdefault(owner, []).append(record)
        for owner, part in parts.items():
            keys = [r[0] for r in part] if with_keys else None
            self.operators[owner].receivers()[port](Batch(part, [r[1] for r in part], keys))
        return self

    def left(self, *records: tuple[Any, int, Any]) -> Drive:
        return self.feed(0, records)

    def right(self, *records: tuple[Any, int, Any]) -> Drive:
        return self.feed(1, records)

    def watermark(self, timestamp: int) -> Drive:
        for operator in self.operators:
            operator.control(Watermark(timestamp))
            while isinstance(operator, TimedOperator) and operator.has_work:
                operator.work()
        return self

    def end(self) -> Drive:
        return self.watermark(MAX_WATERMARK)

    # ---- what can be seen ------------------------------------------------------------------------------------

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.records]

    def take(self) -> list[tuple[Any, int]]:
        taken, self.records = self.records, []
        return taken

    def dropped(self) -> int:
        counters = [o.context.metrics.counters.get("numLateRecordsDropped") for o in self.operators]
        return sum(c.value for c in counters if c is not None)

    def snapshot(self) -> list[OperatorSnapshot]:
        taken: list[OperatorSnapshot] = pickle.loads(pickle.dumps([o.snapshot() for o in self.operators]))
        return taken

    def state_size(self) -> int:
        """In how many key groups there is state."""
        return sum(len(s.keyed.groups) for s in self.snapshot() if s.keyed is not None)

    def close(self) -> None:
        for operator in self.operators:
            operator.close()


@pytest.fixture(scope="session")
def drive() -> type[Drive]:
    """How to drive a join."""
    return Drive
