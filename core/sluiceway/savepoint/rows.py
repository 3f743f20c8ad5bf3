"""State as data: what is in a checkpoint, as rows or as an Arrow table."""

from __future__ import annotations

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
    """The rows of a checkpoint; read from its files each time they are iterated over.

    Attributes:
        metadata: of the checkpoint.
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
        """A ``pyarrow.Table`` with a column for each field of :class:`StateRow`.

        A column whose values are not of one type that Arrow knows has them as JSON text.

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
    location: str,
    *,
    uid: str | None = None,
    state: str | None = None,
    trusted: bool = False,
) -> StateRows:
    """The state in a checkpoint or savepoint, without the job that has it.

    Args:
        location: path or URL of the checkpoint's directory, ``.../chk-12``.
        uid: only the state of the step with this uid.
        state: only the state of this name.
        trusted: also unpickle values of classes, which must be importable then; that can run any code. Else they
            are given as :class:`Opaque <sluiceway.checkpoint.offline_reader.Opaque>`.

    Raises:
        CheckpointError: there is no complete checkpoint, or it is damaged; names the file.
        UnknownNameError: while iterating: nothing in the checkpoint goes by that uid or name; says what there is.
        MissingExtraError: it is in the format of a state backend whose library is missing.
    """
    return StateRows(location, uid, state, trusted, default_manager())


def _column(pyarrow: Any, values: list[Any]) -> Any:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return pyarrow.array(list(map(as_text, values)))
