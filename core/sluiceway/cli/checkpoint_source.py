"""Checkpoints for tools, also of runs whose engine keeps state in a form of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sluiceway.errors import CheckpointError

if TYPE_CHECKING:
    from sluiceway.plugins import PluginManager

__all__ = ["checkpoint_of"]


@contextmanager
def checkpoint_of(path: str, manager: PluginManager) -> Iterator[str]:
    """Give the place of a checkpoint: that one, or within the context an extract of the run that is there.

    Args:
        path: path or URL of a checkpoint, or of a run in micro-batches.
        manager: knows engines and storages.

    Raises:
        CheckpointError: the run's state cannot be read.
        MissingExtraError: what the run's engine needs for that is missing.
    """
    engine = _engine_of(path, manager)
    if engine is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="sluiceway-extract-") as directory:
        manager.engine(engine).extract(path, directory, manager.services())
        yield f"{directory}/chk-1"


def _engine_of(path: str, manager: PluginManager) -> str | None:
    """Return the engine of the newest run there, if it is no checkpoint."""
    from sluiceway.checkpoint import METADATA
    from sluiceway.runtime.microbatch.run_directory import find_runs

    try:
        storage = manager.checkpoint_storage(path)
        runs = find_runs(storage)
        if not runs or any(file.name == METADATA for file in storage.files()):
            return None
    except CheckpointError:
        return None  # whoever reads it will say what is wrong there
    return runs[-1].engine
