"""Export of an engine's own state as a checkpoint."""

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
    """Write a checkpoint of the state of a run's subtasks, and return its path or URL.

    Args:
        run: the run.
        states: snapshots by subtask number, counted over the vertices in the run's order.
        storage: storage of the checkpoint.
        now_ms: time of the checkpoint, in ms since the epoch.

    Raises:
        CheckpointError: the checkpoint cannot be written.
    """
    directory = CheckpointDirectory(storage)
    where = directory.directory(1)
    vertices = []
    # Subtasks are numbered through all vertices, in the order of the run.
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
