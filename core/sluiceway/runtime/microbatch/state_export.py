"""State that an engine keeps in a form of its own, written as a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version

from sluiceway.checkpoint import CHECKPOINT, CheckpointDirectory, CheckpointMetadata, write_subtask
from sluiceway.checkpoint.metadata import StepEntry, SubtaskEntry, VertexEntry
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.microbatch.run_directory import Run

__all__ = ["write_extract"]


def write_extract(
    run: Run, states: Mapping[int, Iterable[OperatorSnapshot]], storage: CheckpointStorage, now_ms: int
) -> str:
    """Write a checkpoint of what subtasks of a run have. Returns its path or URL.

    Args:
        run: the run.
        states: by number of the subtask, in the order of the run's vertices.
        storage: where to.
        now_ms: ms since the epoch.

    Raises:
        CheckpointError: it cannot be written.
    """
    directory = CheckpointDirectory(storage)
    where = directory.directory(1)
    vertices = []
    first = 0
    for place, vertex in enumerate(run.vertices):
        subtasks: list[SubtaskEntry] = []
        for index in range(vertex.subtasks):
            if snapshots := states.get(first + index):
                name = f"{place}-{index}.state"
                subtasks.append(write_subtask(storage, where, name, index, snapshots, canonical=True))
        first += vertex.subtasks
        vertices.append(
            VertexEntry(
                uid=vertex.uids[0],
                name=vertex.name,
                parallelism=vertex.subtasks,
                max_parallelism=vertex.key_groups or vertex.subtasks,
                steps=tuple(StepEntry(uid=uid) for uid in vertex.uids),
                subtasks=tuple(subtasks),
            )
        )
    return directory.complete(
        CheckpointMetadata(
            job_name=run.job,
            job_id=run.id,
            checkpoint_id=1,
            kind=CHECKPOINT,
            triggered_ms=now_ms,
            completed_ms=now_ms,
            vertices=tuple(vertices),
            written_by=version("sluiceway"),
        )
    )
