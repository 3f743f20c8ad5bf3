"""Raw state: bytes that functions write and read themselves, redistributed by chunk or by key group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluiceway.errors import MisusedStateError
from sluiceway.functions import RawKeyedState, RawOperatorState
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators.list_snapshot import ListMode, ListSnapshot
from sluiceway.serializers import MsgspecSerializer

__all__ = ["RawStates"]

# Not by serializer_for(): a registered serializer may take any type, and is not registered yet where this module
# is imported first.
_CHUNKS: Final = MsgspecSerializer(bytes)
_STREAMS: Final = MsgspecSerializer(tuple[int, bytes])


class RawStates:
    """Raw state of one step in one subtask.

    Restored chunks stay part of the state until a function reads them or writes raw state.

    Args:
        operator: uid of the step, for messages.
        subtask: index of the subtask.
        parallelism: parallelism of the step.
        key_groups: key groups of the subtask; None: the step has no keys.
        restored: its share of the chunks, and the streams of all earlier subtasks.
    """

    def __init__(
        self,
        operator: str,
        subtask: int,
        parallelism: int,
        key_groups: KeyGroupRange | None,
        restored: Iterable[ListSnapshot],
    ) -> None:
        self._operator = operator
        self._subtask, self._parallelism = subtask, parallelism
        self.key_groups = key_groups
        self._restored: list[ListSnapshot] = []
        for kept in restored:
            elements = kept.elements
            if kept.mode is ListMode.RAW_KEYED:
                # Every subtask is given the streams of all: keep those of its own key groups.
                own = key_groups or KeyGroupRange(0, 0)
                elements = tuple(e for e in elements if own.start <= _STREAMS.loads(e)[0] < own.end)
            self._restored.append(self._snapshot(kept.mode, elements))
        # Modes that a function has read or written here. Restored data of the others goes into the next snapshot
        # as it is.
        self._known: set[ListMode] = set()
        self.chunks = RawOperatorState(())
        self.streams = self._new_streams()

    def _new_streams(self) -> RawKeyedState:
        return RawKeyedState(self._operator, self.key_groups)

    def restored_chunks(self) -> list[bytes]:
        """Return this subtask's share of the chunks that functions of earlier subtasks have written."""
        self._known.add(ListMode.RAW)
        return [_CHUNKS.loads(e) for kept in self._restored if kept.mode is ListMode.RAW for e in kept.elements]

    def restored_streams(self) -> dict[int, bytes]:
        """Return the streams written by earlier subtasks, by own key group. Raises StateError without keys."""
        if self.key_groups is None:
            raise MisusedStateError(
                f"step {self._operator!r} has no keys, and so no raw keyed state: use raw_operator_state, or put "
                "key_by(...) before it"
            )
        self._known.add(ListMode.RAW_KEYED)
        found = (
            _STREAMS.loads(e) for kept in self._restored if kept.mode is ListMode.RAW_KEYED for e in kept.elements
        )
        return dict(sorted(found))

    def begin(self) -> None:
        """Begin a snapshot, for which functions write all their raw state again."""
        self.chunks = RawOperatorState(())
        self.streams = self._new_streams()

    def snapshot(self) -> list[ListSnapshot]:
        """Return the raw state written since :meth:`begin`."""
        written = {
            ListMode.RAW: tuple(map(_CHUNKS.dumps, self.chunks.chunks)),
            ListMode.RAW_KEYED: tuple(
                _STREAMS.dumps((group, bytes(data))) for group, data in sorted(self.streams.streams.items())
            ),
        }
        taken = []
        for mode, elements in written.items():
            if elements:
                self._known.add(mode)
                taken.append(self._snapshot(mode, elements))
        return taken + [kept for kept in self._restored if kept.mode not in self._known]

    def _snapshot(self, mode: ListMode, elements: tuple[bytes, ...]) -> ListSnapshot:
        is_keyed = mode is ListMode.RAW_KEYED
        serializer = _STREAMS if is_keyed else _CHUNKS
        return ListSnapshot(
            "raw keyed state" if is_keyed else "raw operator state",
            mode,
            serializer.name,
            serializer.version,
            "tuple[int, bytes]" if is_keyed else "bytes",
            self._subtask,
            self._parallelism,
            elements,
        )
