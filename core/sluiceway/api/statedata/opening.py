"""Checkpoints in the format of a state backend, opened for reading."""

from __future__ import annotations

from sluiceway.api.statedata.sources import OpenNative
from sluiceway.checkpoints.metadata import VertexEntry
from sluiceway.keygroups import KeyGroupRange
from sluiceway.plugins import PluginManager
from sluiceway.plugins.kinds import STATE_BACKEND
from sluiceway.state import BackendContext, KeyedSnapshot, NativeState, StateBackend

__all__ = ["native_opener"]


def native_opener(manager: PluginManager) -> OpenNative:
    """What makes a snapshot with rows of one with files of a backend, by that backend."""

    def opened(native: NativeState, snapshot: KeyedSnapshot, vertex: VertexEntry) -> KeyedSnapshot:
        name = native.format.partition(" ")[0]
        backend = manager.make(STATE_BACKEND, name, StateBackend)  # type: ignore[type-abstract]
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

    return opened
