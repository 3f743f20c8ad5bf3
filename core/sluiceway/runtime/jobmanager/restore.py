"""Restore of a job from a checkpoint of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluiceway.checkpoint import METADATA, read_enumerators, read_in_flight, read_operators, split_location
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import ConfigurationError, IncompatibleStateError
from sluiceway.graph import JobGraph
from sluiceway.runtime.jobmanager.metadata_checks import (
    refusals,
    saved_key_groups,
    with_dead_letters,
    wrong_key_groups,
)
from sluiceway.runtime.jobmanager.newest_checkpoint import find_newest, find_resumable
from sluiceway.runtime.logging.engine_log import INFO, WARNING, log
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.serializers.program_classes import OwnClasses, ProgramClasses, using

__all__ = ["classes_of", "restore_from"]


def classes_of(graph: JobGraph) -> ProgramClasses:
    """Return the classes of a job's program in the process that has its graph, see :func:`.using`."""

    def search() -> Iterator[type]:
        from sluiceway.serializers.byvalue import classes_in  # cloudpickle takes long to import

        # Step by step: in one process, what cannot be pickled is no obstacle to a job.
        for part in (*(node for vertex in graph.vertices for node in vertex.nodes), *graph.edges):
            yield from classes_in(part)

    return OwnClasses(search)


def restore_from(settings: Settings, graph: JobGraph, services: Services) -> JobSnapshot | None:
    """Return the snapshot that a job starts from, or None.

    Args:
        settings: ``from_checkpoint`` is the path or URL of a checkpoint; or of a directory with checkpoints in
            it or below it: then it is the newest of them. None: the job begins at its beginning, or with
            ``resume`` from its own newest checkpoint in ``checkpoints``, if it has left one there.
        graph: the job.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
        ConfigurationError: somebody else may have written it, and ``allow_pickles`` does not allow that.
        IncompatibleStateError: a state is of another type than its step declares, or its step is of another kind
            now and knows nothing of it, unless that is allowed, as far as that can be seen before the job runs;
            or there is state that no step of the job goes by, unless that is allowed; or a source was added before
            steps that had come to their end; or keyed state of another number of key groups than was chosen, or in
            files of a state backend that is missing.
    """
    location = settings.from_checkpoint
    if location is None and settings.resume and settings.checkpoints is not None:
        place = services.checkpoint_storage(settings.checkpoints)
        resumable = find_resumable(place, graph.job_name, services.checkpoint_storage)
        if resumable is not None:
            location = resumable.location
            log(INFO, "jobs", f"resumes from {location}", job=graph.job_name)
    if location is None:
        return None
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = find_newest(storage, name)
    metadata = with_dead_letters(metadata, graph)
    _check_origin(storage, directory, settings, graph.job_name)
    with using(classes_of(graph)):
        restored = JobSnapshot(
            read_operators(storage, directory, metadata),
            read_enumerators(storage, directory, metadata),
            saved_key_groups(metadata),
            # Records in flight are not those that a replay is for: the job itself goes on with them.
            () if graph.left_out else read_in_flight(storage, directory, metadata),
        )
    # It imports operators that most jobs do not use, so only a restore does so.
    from sluiceway.runtime.jobmanager.state_compatibility import check_states, saved_metadata

    with _naming_other(metadata.job_name, graph.job_name):
        # Compared with the graph as it would run: the saved number of key groups goes before one that nobody
        # chose.
        wrong = refusals(metadata, services) | wrong_key_groups(restored.key_groups, restored.fit(graph))
        for problem in wrong.values():
            raise IncompatibleStateError(problem)
        restored.check_ends(graph)
        if not settings.allow_dropped_state:
            restored.check_known(graph)
        check_states(saved_metadata(storage, directory, metadata, services), graph, settings, services)
    return restored


@contextmanager
def _naming_other(saved: str, job: str) -> Iterator[None]:
    """Add the name of the job that has left a snapshot to the errors of another job, which may have been meant."""
    try:
        yield
    except IncompatibleStateError as error:
        if saved == job:
            raise
        raise IncompatibleStateError(f"{error}. The snapshot is of job {saved!r}") from error


def _check_origin(storage: CheckpointStorage, directory: str, settings: Settings, job_name: str) -> None:
    """Refuse a checkpoint that others may have written, or log that this cannot be determined."""
    if settings.allow_pickles:
        return
    name = f"{directory}/{METADATA}" if directory else METADATA
    who = storage.other_writers(name)
    shown = storage.shown(directory) if directory else storage.location
    why = "it may hold pickled objects, and these run code when they are loaded"
    if who:
        raise ConfigurationError(
            f"the checkpoint {shown} is not restored: {why}, and {who}. If you trust whoever may have written it,"
            " say so with --allow-pickles (allow-pickles = true); else restore a checkpoint of your own, or take"
            " the right to write there from others (chmod o-w)"
        )
    if who is None and not _is_below(shown, settings.checkpoints):
        log(
            WARNING,
            "jobs",
            f"restores {shown}: {why}, so it must come from somebody you trust. allow-pickles = true leaves this"
            " warning out",
            job=job_name,
        )


def _is_below(location: str, place: str | None) -> bool:
    return place is not None and f"{location.rstrip('/')}/".startswith(f"{place.rstrip('/')}/")
