"""Choice of the newest checkpoint: that of a job for the option ``resume``, or one below a place of ``--from``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sluiceway.checkpoint import (
    CHECKPOINT,
    METADATA,
    CheckpointMetadata,
    checkpoint_number,
    find_checkpoints,
    load_metadata,
    split_location,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.util.file_names import file_name

__all__ = ["Resumable", "find_newest", "find_resumable", "note_stop"]

_STOPPED: Final = "stopped.json"
"""File in the directory of a run that was stopped with a savepoint in another place."""


class Resumable(msgspec.Struct, frozen=True):
    """Checkpoint or savepoint that a job resumes from.

    Attributes:
        location: path or URL of its directory.
        metadata: metadata of the checkpoint.
    """

    location: str
    metadata: CheckpointMetadata

    @property
    def is_final(self) -> bool:
        """True if all subtasks had finished: the job has nothing left to do."""
        return all(subtask.finished for subtask in self.metadata.subtasks())


def find_resumable(
    storage: CheckpointStorage, job_name: str, open_storage: Callable[[str], CheckpointStorage]
) -> Resumable | None:
    """Return the newest complete checkpoint or savepoint of a job. Blocks.

    Checkpoints of other jobs in the storage are ignored, and so are savepoints after which their run continued;
    see :func:`find_newest`. A run that was stopped with a savepoint in another storage resumes from that one.

    Unreadable metadata is skipped with a warning if the job has a newer complete checkpoint. The newest one is
    never skipped: output that was committed with it would be written again.

    Args:
        storage: storage of the job's checkpoints.
        job_name: name of the pipeline.
        open_storage: function that opens the storage of a savepoint elsewhere.

    Returns:
        the checkpoint; None if the job has none.

    Raises:
        CheckpointError: the newest checkpoint, or the storage, cannot be read.
    """
    found: list[tuple[str, CheckpointMetadata]] = []
    damaged: list[tuple[str, CheckpointError]] = []
    for directory in find_checkpoints(storage):
        try:
            metadata = load_metadata(storage, directory)
        except CheckpointError as error:
            if _may_be_of(directory, job_name):
                damaged.append((directory, error))
        else:
            if metadata.job_name == job_name:
                found.append((directory, metadata))
    newest = None
    if found:
        directory, metadata = _newest_of(storage, "", found)
        newest = Resumable(storage.shown(directory) if directory else storage.location, metadata)
    stop = _last_stop(storage, job_name)
    # Stopped after its newest checkpoint: output was committed that only the savepoint knows of. No checkpoint of
    # a run follows its stop, whatever the clock said.
    if stop is not None:
        stopped_ms, savepoint, run = stop
        if newest is None or run == _run(newest.metadata) or stopped_ms > newest.metadata.completed_ms:
            newest = _stopped_with(savepoint, job_name, open_storage)
    _check_damaged(storage, job_name, damaged, newest)
    return newest


def find_newest(storage: CheckpointStorage, name: str) -> tuple[str, CheckpointMetadata]:
    """Return the newest checkpoint in a directory or below it, with its directory. Raises CheckpointError.

    A savepoint after which its run continued is ignored if the run has a checkpoint: after a failure the run may
    have restarted from that checkpoint, and aborted transactions that the savepoint records as pre-committed. It
    is also ignored if its metadata marks such a restart, unless ``name`` is its own directory.
    """
    found = [(directory, load_metadata(storage, directory)) for directory in find_checkpoints(storage, name)]
    if not found:
        raise CheckpointError(f"there is no complete checkpoint in {storage.shown(name)}")
    return _newest_of(storage, name, found)


def _newest_of(
    storage: CheckpointStorage, name: str, found: Sequence[tuple[str, CheckpointMetadata]]
) -> tuple[str, CheckpointMetadata]:
    """Return the newest of some checkpoints; see :func:`find_newest`."""
    runs = {_run(metadata) for _, metadata in found if metadata.kind == CHECKPOINT} - {""}
    # Savepoints after which the run went on are out, where the run has left a checkpoint.
    lasting = [one for one in found if _was_last(one[1]) or _run(one[1]) not in runs]
    lasting = [one for one in lasting if one[0] == name or not one[1].properties.get("behind")]
    if not lasting:
        raise CheckpointError(
            f"in {storage.shown(name) if name else storage.location} there are only savepoints whose run has "
            "failed after them and restarted from before them: to restore one all the same, name its own "
            f"directory, such as {storage.shown(found[-1][0])}"
        )
    # Each run counts its checkpoints from 1, so that only times can be compared between runs. Within a run the
    # clock may have been set back.
    last: dict[str, tuple[str, CheckpointMetadata]] = {}
    for one in lasting:
        run = _run(one[1]) or one[0]
        last[run] = max(last.get(run, one), one, key=lambda each: (each[1].checkpoint_id, each[1].completed_ms))
    return max(last.values(), key=lambda one: (one[1].completed_ms, one[1].checkpoint_id))


def note_stop(storage: CheckpointStorage, run: str, job_name: str, savepoint: str, now_ms: int) -> None:
    """Record the savepoint that a run was stopped with, unless it is in the same storage. Blocks.

    The last checkpoint of the run precedes output that was committed with the savepoint. A job that resumed from
    that checkpoint would write it again.

    Args:
        storage: storage of the run's checkpoints.
        run: directory of the run in the storage.
        job_name: name of the pipeline.
        savepoint: path or URL of the savepoint.
        now_ms: current time, in ms since the epoch.

    Raises:
        CheckpointError: the record cannot be written.
    """
    if f"{split_location(savepoint)[0].rstrip('/')}/".startswith(f"{storage.location.rstrip('/')}/"):
        return
    content = {"job_name": job_name, "savepoint": savepoint, "stopped_ms": now_ms}
    storage.write(f"{run}/{_STOPPED}", [json.dumps(content, indent=1).encode()])


def _last_stop(storage: CheckpointStorage, job_name: str) -> tuple[int, str, str] | None:
    """Return the last savepoint elsewhere that ended the job: time, in ms since the epoch, location, and run."""
    stops = []
    for file in storage.files():
        if file.name.endswith(f"/{_STOPPED}"):
            try:
                content = json.loads(storage.read(file.name))
                if content["job_name"] == job_name:
                    run = file.name.removesuffix(f"/{_STOPPED}")
                    stops.append((int(content["stopped_ms"]), str(content["savepoint"]), run))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise CheckpointError(f"{storage.shown(file.name)} is damaged: {error}") from error
    return max(stops, default=None)


def _stopped_with(savepoint: str, job_name: str, open_storage: Callable[[str], CheckpointStorage]) -> Resumable:
    place, directory = split_location(savepoint)
    try:
        return Resumable(savepoint, load_metadata(open_storage(place), directory))
    except CheckpointError as error:
        raise CheckpointError(
            f"{job_name!r} was stopped with the savepoint {savepoint}, which cannot be read: {error}. Restore "
            "that directory, or name with --from the checkpoint to begin with; output committed after that "
            "checkpoint is written once more"
        ) from error


def _check_damaged(
    storage: CheckpointStorage,
    job_name: str,
    damaged: Sequence[tuple[str, CheckpointError]],
    newest: Resumable | None,
) -> None:
    for directory, error in damaged:
        if newest is not None and _is_older(storage, directory, newest.metadata):
            log(WARNING, "jobs", f"{error}; it is older than {newest.location} and is skipped", job=job_name)
            continue
        older = "there is none" if newest is None else f"that one is {newest.location}"
        raise CheckpointError(
            f"{error}. It may be the newest checkpoint of {job_name!r}, with output committed that no older one "
            "knows of, so that the job does not resume from an older one by itself. To begin with an older one "
            f"all the same, name it with --from: {older}; or remove the damaged directory"
        ) from error


def _is_older(storage: CheckpointStorage, directory: str, newest: CheckpointMetadata) -> bool:
    run, _, name = directory.rpartition("/")
    number = checkpoint_number(name)
    if number is not None and run and run == _run(newest):
        return number < newest.checkpoint_id
    # The time of the file stands for that in the metadata, which cannot be read.
    metadata = f"{directory}/{METADATA}" if directory else METADATA
    written_ms = max((file.modified_ms for file in storage.files(directory) if file.name == metadata), default=0)
    return 0 < written_ms < newest.completed_ms


def _may_be_of(directory: str, job_name: str) -> bool:
    """Return whether a directory may belong to the job: directories of runs and savepoints contain its name."""
    return not directory or file_name(job_name) in directory


def _run(metadata: CheckpointMetadata) -> str:
    return str(metadata.properties.get("run", ""))


def _was_last(metadata: CheckpointMetadata) -> bool:
    return metadata.kind == CHECKPOINT or bool(metadata.properties.get("stops"))
