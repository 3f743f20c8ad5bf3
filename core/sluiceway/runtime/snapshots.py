"""A job's state at one moment, and how it is dealt out to the subtasks of another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluiceway.errors import StateError
from sluiceway.graph import JobGraph, JobVertex
from sluiceway.operators import OperatorSnapshot

__all__ = ["JobSnapshot"]


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """Everything a job must know to go on from one moment: taken when no record is under way.

    Attributes:
        operators: per subtask and step: keyed state, or the splits of a source's reader with positions.
        enumerators: per uid of a source, what its enumerator's snapshot returned.
    """

    operators: tuple[OperatorSnapshot, ...] = ()
    enumerators: Mapping[str, Any] = field(default_factory=dict)

    def share(self, vertex: JobVertex, subtask: int) -> tuple[OperatorSnapshot, ...]:
        """What one subtask is given, whatever the parallelism was.

        Splits are dealt out here. Everything else is given whole, as it was in each earlier subtask in order: a
        step keeps what it owns.
        """
        uids = {n.uid for n in vertex.nodes}
        mine = [replace(s, splits=()) for s in self.operators if s.uid in uids]
        splits = [split for s in self.operators if s.uid == vertex.uid for split in s.splits]
        dealt = tuple(splits[subtask :: vertex.parallelism])
        return (*mine, OperatorSnapshot(vertex.uid, splits=dealt)) if dealt else tuple(mine)

    def check_known(self, graph: JobGraph) -> None:
        """Refuse state that no step of the job would get.

        Raises:
            StateError: names the uids.
        """
        known = {n.uid for v in graph.vertices for n in v.nodes}
        listed = {s.uid for s in self.operators if any(kept.elements for kept in s.lists)}
        undealt = {uid for uid, state in self.enumerators.items() if state}
        lost = (_stateful(self.operators) | listed | undealt) - known
        if lost:
            raise StateError(
                f"the snapshot has state of {', '.join(map(repr, sorted(lost)))}, which no step of job "
                f"{graph.job_name!r} goes by: give its step that uid, with .uid(...)"
            )


def _stateful(operators: Iterable[OperatorSnapshot]) -> set[str]:
    return {
        s.uid
        for s in operators
        if s.splits or s.pending or any((s.broadcast or {}).values()) or (s.keyed is not None and s.keyed.groups)
    }
