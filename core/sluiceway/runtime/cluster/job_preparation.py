"""Preparation of a job: its storage, and the checkpoint or savepoint that it restores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.graph import JobGraph
from sluiceway.runtime.jobmanager.checkpoint_places import check_place
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointPlace
from sluiceway.runtime.jobmanager.restore import restore_from
from sluiceway.runtime.jobmanager.takeover import Recovered, find_last_savepoint, mark_left_behind, recover
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.runtime.taskmanager.local_recovery import with_local_copies

__all__ = ["MOST_PREPARED", "EarlierRun", "PreparedJob", "prepare_job"]

MOST_PREPARED: Final = 64
"""Jobs that are prepared at a time, each in its own thread; more jobs that are recovered share threads."""


class EarlierRun(msgspec.Struct, frozen=True):
    """Run of a job under an earlier job manager.

    Attributes:
        checkpoint_path: directory of its checkpoints; empty: they were kept nowhere.
        last_savepoint: place of the savepoint with which it was to end; empty: it was not.
        savepoints: others that it may have taken since its last checkpoint.
    """

    checkpoint_path: str = ""
    last_savepoint: str = ""
    savepoints: tuple[str, ...] = ()


class PreparedJob(msgspec.Struct, frozen=True):
    """Job with what it starts from.

    Attributes:
        job: its id.
        graph: the job, at the parallelism and with the key groups that fit what it restores.
        settings: the options of the run.
        place: place of its checkpoints.
        restored: snapshot to restore; None: the job starts empty.
        recovered: state from an earlier job manager; None: it is a new job.
    """

    job: str
    graph: JobGraph
    settings: Settings
    place: CheckpointPlace
    restored: JobSnapshot | None
    recovered: Recovered | None


def prepare_job(
    job: str,
    graph: JobGraph,
    settings: Settings,
    services: Services,
    temporary_place: Callable[[str], CheckpointPlace],
    earlier: EarlierRun | None = None,
) -> PreparedJob:
    """Open the storage of a job, and read what it restores. Blocks. From any thread.

    Args:
        job: its id.
        graph: the job.
        settings: the options of the run.
        services: factories of the plugins.
        temporary_place: returns the place of a job that names none for its checkpoints, from the job's id.
        earlier: its run under an earlier job manager, to continue; None: it is a new job.

    Raises:
        CheckpointError: the checkpoint that it is to begin with cannot be read.
        ConfigurationError: that checkpoint is not to be trusted, or the place of checkpoints cannot be used.
        StateError: that checkpoint does not fit the job.
    """
    if settings.checkpoints is None:
        place = temporary_place(job)
    else:
        place = CheckpointPlace(with_local_copies(services.checkpoint_storage(settings.checkpoints), settings))
    recovered = None
    if earlier is not None and earlier.checkpoint_path and not place.temporary:
        recovered = recover(place.storage, earlier.checkpoint_path, graph, services.clock.now_ms())
    restored_id = 0 if recovered is None else recovered.latest
    if earlier is not None and earlier.last_savepoint:
        recovered = recovered or Recovered("")
        savepoints = services.checkpoint_storage(earlier.last_savepoint)
        # A recovered run has a new directory where it is temporary.
        run = "" if place.temporary else earlier.checkpoint_path
        found = find_last_savepoint(savepoints, job, recovered.latest, run)
        if found is not None:
            recovered = recovered.from_savepoint(*found)
            settings = replace(settings, from_checkpoint=found[0])
            restored_id = found[1]
    # A job that was to end with a savepoint restores that one if it was complete: its sinks may have committed
    # with it. Otherwise its own last checkpoint counts, and only without any the one that the user has named.
    if recovered is not None and recovered.snapshot is not None:
        restored: JobSnapshot | None = recovered.snapshot
    else:
        if recovered is None:
            check_place(settings, services)
        restored = restore_from(settings, graph, services)
    if restored is not None:
        graph = restored.fit(graph)
    if earlier is not None:
        mark_left_behind(earlier.savepoints, services.checkpoint_storage, restored_id)
    return PreparedJob(job, graph, settings, place, restored, recovered)
