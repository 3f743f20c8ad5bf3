"""A job's state at one moment, and how it is dealt out to the subtasks of another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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

        Keyed state is given whole: the backend keeps the key groups that it owns. Splits are dealt out.
        """
        uids = {n.uid for n in vertex.nodes}
        mine = [s for s in self.operators if s.uid in uids and s.keyed is not None]
        splits = [split for s in self.operators if s.uid == vertex.uid for split in s.splits]
        dealt = tuple(splits[subtask :: vertex.parallelism])
        return (*mine, OperatorSnapshot(vertex.uid, splits=dealt))

    def check_known(self, graph: JobGraph) -> None:
        """Refuse state that no step of the job would get.

        Raises:
            StateError: names the uids.
        """
        known = {n.uid for v in graph.vertices for n in v.nodes}
        lost = _stateful(self.operators) - known
        if lost:
            raise StateError(
                f"the snapshot has state of {', '.join(map(repr, sorted(lost)))}, which no step of job "
                f"{graph.job_name!r} goes by: give its step that uid, with .uid(...)"
            )


def _stateful(operators: Iterable[OperatorSnapshot]) -> set[str]:
    return {s.uid for s in operators if s.splits or (s.keyed is not None and s.keyed.groups)}
