"""Going on from a checkpoint of an earlier run."""

from __future__ import annotations

from sluiceway.checkpoints import (
    CheckpointMetadata,
    find_checkpoints,
    load_metadata,
    read_enumerators,
    read_operators,
    split_location,
)
from sluiceway.config import Settings
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError, StateError
from sluiceway.graph import JobGraph
from sluiceway.runtime.snapshots import JobSnapshot
from sluiceway.storage import CheckpointStorage

__all__ = ["restore_from"]


def restore_from(settings: Settings, graph: JobGraph, services: Services) -> JobSnapshot | None:
    """What a job begins with.

    Args:
        settings: ``from_checkpoint`` is the path or URL of a checkpoint; or of a directory with checkpoints in
            it or below it: then it is the newest of them. None: the job begins at its beginning.
        graph: the job.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
        StateError: it has state that no step of the job goes by, unless that is allowed; or keyed state of
            another number of key groups.
    """
    location = settings.from_checkpoint
    if location is None:
        return None
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = _find(storage, name)
    _check_key_groups(metadata, graph)
    restored = JobSnapshot(
        read_operators(storage, directory, metadata), read_enumerators(storage, directory, metadata)
    )
    if not settings.allow_dropped_state:
        restored.check_known(graph)
    return restored


def _find(storage: CheckpointStorage, name: str) -> tuple[str, CheckpointMetadata]:
    found = [(directory, load_metadata(storage, directory)) for directory in find_checkpoints(storage, name)]
    if not found:
        raise CheckpointError(f"there is no complete checkpoint in {storage.shown(name)}")
    return max(found, key=lambda one: (one[1].completed_ms, one[1].checkpoint_id))


def _check_key_groups(metadata: CheckpointMetadata, graph: JobGraph) -> None:
    now = {node.uid: vertex for vertex in graph.vertices for node in vertex.nodes}
    for old in metadata.vertices:
        keyed = {o.uid for s in old.subtasks for o in s.operators if o.keyed is not None}
        for uid in sorted(keyed & now.keys()):
            vertex = now[uid]
            if vertex.max_parallelism != old.max_parallelism:
                raise StateError(
                    f"the state of step {uid!r} was saved in {old.max_parallelism} key groups, and the job "
                    f"divides it into {vertex.max_parallelism}: set max-parallelism to {old.max_parallelism}"
                )
