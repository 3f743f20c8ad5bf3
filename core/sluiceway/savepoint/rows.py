"""State of a checkpoint as rows, or as one Arrow table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sluiceway.checkpoint import StateReader, load_metadata, split_location
from sluiceway.checkpoint.metadata import CheckpointMetadata
from sluiceway.checkpoint.offline_reader import StateRow, content_of
from sluiceway.errors import MissingExtraError
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.savepoint.json_text import as_text
from sluiceway.util.install_hints import install_command

__all__ = ["StateRows", "read_state"]


class StateRows:
    """Rows of a checkpoint. Each iteration reads the files.

    Attributes:
        metadata: metadata of the checkpoint.
    """

    def __init__(
        self, location: str, uid: str | None, state: str | None, trusted: bool, manager: PluginManager
    ) -> None:
        place, self._directory = split_location(location)
        self._storage = manager.checkpoint_storage(place)
        self._manager = manager
        self._uid, self._state, self._trusted = uid, state, trusted
        self.metadata: CheckpointMetadata = load_metadata(self._storage, self._directory)

    def __iter__(self) -> Iterator[StateRow]:
        return content_of(
            StateReader(self._storage, self._directory),
            self.metadata,
            open_backend=self._manager.services().state_backend,
            uid=self._uid,
            state=self._state,
            trusted=self._trusted,
        )

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table`` with a column for each field of :class:`StateRow`.

        Columns of mixed types, or of types unknown to Arrow, are JSON text.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError(f"Arrow tables need pyarrow: {install_command('sluiceway[arrow]')}") from error
        rows = list(self)
        names = [field.name for field in fields(StateRow)]
        return pyarrow.table({name: _column(pyarrow, [getattr(row, name) for row in rows]) for name in names})


def read_state(
    location: str | os.PathLike[str],
    *,
    uid: str | None = None,
    state: str | None = None,
    trusted: bool = False,
) -> StateRows:
    """Read the state in a checkpoint or savepoint as rows, without its job.

    Args:
        location: path or URL of the checkpoint's directory, ``.../chk-12``.
        uid: only the state of the step with this uid.
        state: only the state of this name.
        trusted: whether to unpickle values of classes, which must be importable; that can run any code. Otherwise
            they are :class:`Opaque <sluiceway.checkpoint.offline_reader.Opaque>`.

    Raises:
        CheckpointError: the directory has no complete checkpoint, or it is damaged; names the file.
        UnknownNameError: while iterating, if the uid or name does not exist; lists the existing ones.
        MissingExtraError: the library of the state backend that wrote the files is not installed.
    """
    return StateRows(os.fspath(location), uid, state, trusted, default_manager())


def _column(pyarrow: Any, values: list[Any]) -> Any:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return pyarrow.array(list(map(as_text, values)))
