"""Runs whose directory was moved, which Spark does not read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError
from sluiceway.runtime.microbatch.run_directory import Run

__all__ = ["refuse_moved"]

_SCHEMA: Final = re.compile(rb'"file:([^"]+?)/spark(/state/0/_stateSchema/[^"]+)"')


def refuse_moved(storage: CheckpointStorage, run: Run) -> None:
    """Raise CheckpointError if Spark would look for files of a run where it has begun, and they are not there.

    Spark notes the schema of state by the whole paths of its files. Were it to look for them, it would leave empty
    directories in the old place, and nobody could move the run back.

    Args:
        storage: of the run.
        run: what is to go on.
    """
    prefix = f"{run.directory}/" if run.directory else ""
    here = storage.shown(run.directory) if run.directory else storage.location
    for file in storage.files(f"{prefix}spark/state/0/_metadata"):
        for place, schema in _SCHEMA.findall(storage.read(file.name)):
            begun = Path(f"/{place.decode().lstrip('/')}")
            if not Path(f"{begun}/spark{schema.decode()}").exists():
                raise CheckpointError(
                    f"{run.job!r} cannot resume from {here}: the run has begun in {begun}, and Spark's checkpoint "
                    "names files there by their whole path. Move the directory back, or link it to where it was"
                )
