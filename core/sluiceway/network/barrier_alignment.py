"""Alignment of checkpoint barriers over the channels of an input gate, without I/O."""

from __future__ import annotations

from typing import TypeAlias

from sluiceway.elements import CancelCheckpointMarker, CheckpointBarrier

__all__ = ["BarrierAlignment"]

_Out: TypeAlias = "list[CheckpointBarrier | CancelCheckpointMarker]"


class _Pending:
    __slots__ = ("barrier", "delivered")

    def __init__(self, barrier: CheckpointBarrier) -> None:
        self.barrier = barrier
        self.delivered: set[int] = set()


class BarrierAlignment:
    """State machine that counts the barriers of one gate's channels and blocks channels until all are aligned.

    Each method returns what the gate forwards now: a barrier that every channel has delivered, and a cancel marker
    for each checkpoint that can no longer complete here. Elements of a checkpoint that is over are ignored. A
    channel that has finished counts as having delivered every barrier. From the task's thread only.

    Args:
        channels: number of channels, without feedback.
        exactly_once: whether a channel that has delivered its barrier waits for the others. Then there is at most
            one pending checkpoint, and a newer barrier aborts an older one. Else barriers are only counted:
            records between the first and the last are in the checkpoint and are read again after a restore. For a
            savepoint channels always wait.

    Attributes:
        blocked: the channels that must not be read now.
    """

    def __init__(self, channels: int, *, exactly_once: bool = True) -> None:
        self._exactly_once = exactly_once
        self._open = set(range(channels))
        # Checkpoints up to ``_last`` are over. ``_dead`` holds aborted ones above it: several may be pending at
        # once when barriers are only counted, and they may be aborted in any order.
        self._pending: dict[int, _Pending] = {}
        self._last = -1
        self._dead: set[int] = set()
        # Newest checkpoint whose barrier or cancel marker each channel has delivered: it will deliver none of an
        # older one.
        self._beyond: dict[int, int] = {}
        self.blocked: set[int] = set()

    @property
    def pending(self) -> bool:
        """True while some channels have delivered a barrier that others have not."""
        return bool(self._pending)

    def barrier(self, channel: int, barrier: CheckpointBarrier) -> _Out:
        """Record the barrier that a channel has delivered."""
        out: _Out = []
        pending = self._begin(barrier, out)
        self._passed(channel, barrier.checkpoint_id, out)
        if pending is not None:
            pending.delivered.add(channel)
            if self._aligns(barrier):
                self.blocked.add(channel)
            self._complete(out)
        return out

    def start(self, barrier: CheckpointBarrier) -> _Out:
        """Begin a checkpoint without barriers, as all channels have finished or are about to."""
        out: _Out = []
        if self._begin(barrier, out) is not None:
            self._complete(out)
        return out

    def overtake(self, barrier: CheckpointBarrier) -> tuple[_Out, set[int]]:
        """Begin an unaligned checkpoint, which must not be over, before all channels have delivered its barrier.

        Returns:
            cancel markers for older checkpoints, and the channels that had delivered the barrier.
        """
        out: _Out = []
        pending = self._pending.pop(barrier.checkpoint_id, None)
        self._abort_before(barrier.checkpoint_id, out)
        self._over(barrier.checkpoint_id)
        self._release()
        return out, set() if pending is None else pending.delivered

    def is_over(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint has completed here or was aborted, so that its elements are ignored."""
        return checkpoint_id <= self._last or checkpoint_id in self._dead

    def delivered(self, channel: int, checkpoint_id: int) -> bool:
        """Return whether a channel has delivered the barrier of a pending checkpoint, or has finished."""
        pending = self._pending.get(checkpoint_id)
        return channel not in self._open or (pending is not None and channel in pending.delivered)

    def cancel(self, channel: int, marker: CancelCheckpointMarker) -> _Out:
        """Record a channel's cancel marker and abort the checkpoint."""
        # Both a barrier and a cancel marker prove that the channel has skipped older checkpoints.
        out: _Out = []
        self._passed(channel, marker.checkpoint_id, out)
        return out + self.abort(marker.checkpoint_id)

    def abort(self, checkpoint_id: int) -> _Out:
        """Abort one checkpoint, whatever the channels deliver; others are not affected."""
        if self.is_over(checkpoint_id):
            return []
        # Remembered although it may never have begun here: its barriers may still be on their way in other
        # channels, and must not start a checkpoint that cannot complete.
        self._dead.add(checkpoint_id)
        if self._pending.pop(checkpoint_id, None) is not None:
            self._release()
        return [CancelCheckpointMarker(checkpoint_id)]

    def finished(self, channel: int) -> _Out:
        """Record that a channel has delivered its last element."""
        out: _Out = []
        self._open.discard(channel)
        # A finished channel sends no barrier. ``_complete`` compares with the open channels only, so that this may
        # complete pending checkpoints.
        self.blocked.discard(channel)
        self._complete(out)
        return out

    # ---- inside ---------------------------------------------------------------------------------------------

    def _over(self, checkpoint_id: int) -> None:
        self._last = checkpoint_id
        # Checkpoints complete in the order of their ids, so older entries can never be looked up again.
        self._dead = {id_ for id_ in self._dead if id_ > checkpoint_id}

    def _begin(self, barrier: CheckpointBarrier, out: _Out) -> _Pending | None:
        id_ = barrier.checkpoint_id
        if self.is_over(id_):
            return None
        if self._exactly_once:
            # Barriers of older checkpoints that arrive late must not abort the newer one.
            if any(other > id_ for other in self._pending):
                return None
            self._abort_before(id_, out)
        # A channel has skipped this checkpoint already, so that it can never complete: do not block others for it.
        if id_ not in self._pending and any(beyond > id_ for beyond in self._beyond.values()):
            return None
        return self._pending.setdefault(id_, _Pending(barrier))

    def _passed(self, channel: int, checkpoint_id: int, out: _Out) -> None:
        """Abort older checkpoints that a channel has skipped: it will never deliver their barriers."""
        self._beyond[channel] = checkpoint_id
        for older in sorted(id_ for id_ in self._pending if id_ < checkpoint_id):
            if channel not in self._pending[older].delivered:
                out += self.abort(older)

    def _abort_before(self, checkpoint_id: int, out: _Out) -> None:
        # Oldest first: consumers abort their own pending checkpoints in the order of the markers.
        for older in sorted(id_ for id_ in self._pending if id_ < checkpoint_id):
            del self._pending[older]
            self._dead.add(older)
            out.append(CancelCheckpointMarker(older))
            self._release()

    def _complete(self, out: _Out) -> None:
        # None is older than one that completes: a channel that has delivered a newer barrier has delivered or
        # aborted each older one, so that those have completed before.
        for id_, pending in sorted(self._pending.items()):
            if self._open <= pending.delivered:
                del self._pending[id_]
                self._over(id_)
                out.append(pending.barrier)
                self._release()

    def _aligns(self, barrier: CheckpointBarrier) -> bool:
        return self._exactly_once or bool(barrier.savepoint)

    def _release(self) -> None:
        """Unblock channels, except those that wait for another pending checkpoint."""
        self.blocked.clear()
        for pending in self._pending.values():
            if self._aligns(pending.barrier):
                self.blocked |= pending.delivered & self._open
