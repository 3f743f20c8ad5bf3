"""State as data: what is in a checkpoint, as rows or as an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sluiceway.checkpoints import StateReader, load_metadata, split_location
from sluiceway.checkpoints.content import StateRow, content_of
from sluiceway.checkpoints.metadata import CheckpointMetadata, VertexEntry
from sluiceway.errors import MissingExtraError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.plugins.kinds import STATE_BACKEND
from sluiceway.state import BackendContext, KeyedSnapshot, NativeState, StateBackend

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
            open_native=self._open,
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
            raise MissingExtraError('Arrow tables need pyarrow: pip install "sluiceway[arrow]"') from error
        rows = list(self)
        names = [field.name for field in fields(StateRow)]
        return pyarrow.table({name: _column(pyarrow, [getattr(row, name) for row in rows]) for name in names})

    def _open(self, native: NativeState, snapshot: KeyedSnapshot, vertex: VertexEntry) -> KeyedSnapshot:
        name = native.format.partition(" ")[0]
        backend = self._manager.make(STATE_BACKEND, name, StateBackend)  # type: ignore[type-abstract]
        start, end = native.key_groups
        keyed = backend.create_keyed(
            BackendContext(vertex.uid, 0, KeyGroupRange(start, end), vertex.max_parallelism)
        )
        try:
            keyed.restore([snapshot])
            taken = keyed.snapshot()
            len(taken.groups)  # from now on it needs no backend
            return taken
        finally:
            keyed.close()


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
            are given as :class:`Opaque <sluiceway.checkpoints.content.Opaque>`.

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
        return pyarrow.array([None if v is None else v if isinstance(v, str) else as_json(v) for v in values])


def as_json(value: Any) -> str:
    """A value as JSON, as far as there is JSON for it; else its repr as a text."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(part) for key, part in value.items()}
    return repr(value)
