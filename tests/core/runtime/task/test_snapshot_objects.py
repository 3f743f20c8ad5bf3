"""Objects of users and connectors that a checkpoint holds, and what becomes of those that it cannot hold."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import (
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.connector.lib import DiscardSink
from sluiceway.errors import NotSerializableError
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.task.snapshot import with_own_objects


@dataclass(frozen=True)
class Split:
    split_id: str
    next: int
    held: Any = None


class HoldsALock(Source[int]):
    """Numbers without an end, whose position holds a lock after the first of them."""

    boundedness = Boundedness.UNBOUNDED
    output_type = int

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, [Split("a", 0)] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return LockReader(context)


class LockReader(SimpleReader[int]):
    def open_split(self, split: Split) -> None:
        self._split = split

    def read(self, limit: int) -> Poll[int]:
        if self._split.next:
            return Wait()
        self._split = replace(self._split, next=1, held=threading.Lock())
        return [0]

    def position(self) -> Split | None:
        return self._split

    def close_split(self) -> None: ...


@pytest.mark.parametrize("workers", [0, 1])
def test_a_split_with_a_lock_ends_the_job_at_its_first_checkpoint(workers: int) -> None:
    flow = sw.Pipeline("locks")
    flow.source(HoldsALock()).uid("numbers").sink(DiscardSink()).uid("sink")
    with pytest.raises(NotSerializableError, match=r"a split with its position .*pickle '_thread.lock'.* plain"):
        flow.run(checkpoint_interval="10ms", **({"workers": workers} if workers else {}))


def test_objects_are_copies() -> None:
    split = {"position": [1]}
    own = with_own_objects(OperatorSnapshot("a", splits=(split,)))
    split["position"].append(2)
    assert own.splits == ({"position": [1]},)
