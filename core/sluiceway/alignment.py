"""When a checkpoint barrier has come by all channels: the pure part of aligning them."""

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
    """Counts the barriers of one gate's channels, and says which channels have to wait.

    Each method returns what the gate gives on now: a barrier that has come by every channel, and a cancel marker
    for a checkpoint of which this cannot be any more. What comes of a checkpoint that is over is ignored. A
    channel that has finished counts as having delivered every barrier.

    Args:
        channels: how many there are.
        exactly_once: whether a channel that has delivered its barrier waits for the others. Then there is one
            pending checkpoint at most, and a newer barrier ends an older one. Else barriers are only counted:
            what comes between the first and the last belongs to the checkpoint and is read again after it. For a
            savepoint channels always wait.

    Attributes:
        blocked: the channels that must not be read now.
    """

    def __init__(self, channels: int, *, exactly_once: bool = True) -> None:
        self._exactly_once = exactly_once
        self._open = set(range(channels))
        self._pending: dict[int, _Pending] = {}
        self._last = -1
        self._dead: set[int] = set()
        self._beyond: dict[int, int] = {}
        self.blocked: set[int] = set()

    @property
    def pending(self) -> bool:
        """Whether a barrier has come by some channels and not by others."""
        return bool(self._pending)

    def barrier(self, channel: int, barrier: CheckpointBarrier) -> _Out:
        """A channel has delivered a barrier."""
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
        """The checkpoint begins here: no channel will deliver a barrier, as all have finished or are about to."""
        out: _Out = []
        if self._begin(barrier, out) is not None:
            self._complete(out)
        return out

    def overtake(self, barrier: CheckpointBarrier) -> tuple[_Out, set[int]]:
        """The checkpoint begins before all have delivered its barrier; it has begun somewhere, and is not over.

        Returns:
            cancel markers for older ones, and the channels that had delivered the barrier.
        """
        out: _Out = []
        pending = self._pending.pop(barrier.checkpoint_id, None)
        self._abort_before(barrier.checkpoint_id, out)
        self._over(barrier.checkpoint_id)
        self._release()
        return out, set() if pending is None else pending.delivered

    def is_over(self, checkpoint_id: int) -> bool:
        """Whether what still comes of a checkpoint is ignored."""
        return self._is_over(checkpoint_id)

    def delivered(self, channel: int, checkpoint_id: int) -> bool:
        """Whether a channel has delivered the barrier of a checkpoint that is pending, or will deliver none."""
        pending = self._pending.get(checkpoint_id)
        return channel not in self._open or (pending is not None and channel in pending.delivered)

    def cancel(self, channel: int, marker: CancelCheckpointMarker) -> _Out:
        """A channel says that a checkpoint will not be completed."""
        out: _Out = []
        self._passed(channel, marker.checkpoint_id, out)
        return out + self.abort(marker.checkpoint_id)

    def abort(self, checkpoint_id: int) -> _Out:
        """A checkpoint is given up, whatever the channels say; others are left alone."""
        if self._is_over(checkpoint_id):
            return []
        self._dead.add(checkpoint_id)
        if self._pending.pop(checkpoint_id, None) is not None:
            self._release()
        return [CancelCheckpointMarker(checkpoint_id)]

    def finished(self, channel: int) -> _Out:
        """Nothing will come by a channel any more."""
        out: _Out = []
        self._open.discard(channel)
        self.blocked.discard(channel)
        self._complete(out)
        return out

    # ---- inside ---------------------------------------------------------------------------------------------

    def _is_over(self, checkpoint_id: int) -> bool:
        return checkpoint_id <= self._last or checkpoint_id in self._dead

    def _over(self, checkpoint_id: int) -> None:
        self._last = checkpoint_id
        self._dead = {id_ for id_ in self._dead if id_ > checkpoint_id}

    def _begin(self, barrier: CheckpointBarrier, out: _Out) -> _Pending | None:
        id_ = barrier.checkpoint_id
        if self._is_over(id_):
            return None
        if self._exactly_once:
            if any(other > id_ for other in self._pending):
                return None
            self._abort_before(id_, out)
        if id_ not in self._pending and any(beyond > id_ for beyond in self._beyond.values()):
            return None
        return self._pending.setdefault(id_, _Pending(barrier))

    def _passed(self, channel: int, checkpoint_id: int, out: _Out) -> None:
        """A channel that goes on to a newer checkpoint will never deliver the older ones that it has left out."""
        self._beyond[channel] = checkpoint_id
        for older in sorted(id_ for id_ in self._pending if id_ < checkpoint_id):
            if channel not in self._pending[older].delivered:
                out += self.abort(older)

    def _abort_before(self, checkpoint_id: int, out: _Out) -> None:
        for older in sorted(id_ for id_ in self._pending if id_ < checkpoint_id):
            del self._pending[older]
            self._dead.add(older)
            out.append(CancelCheckpointMarker(older))
            self._release()

    def _complete(self, out: _Out) -> None:
        for id_ in sorted(self._pending):
            pending = self._pending.get(id_)
            if pending is not None and self._open <= pending.delivered:
                del self._pending[id_]
                self._abort_before(id_, out)
                self._over(id_)
                out.append(pending.barrier)
                self._release()

    def _aligns(self, barrier: CheckpointBarrier) -> bool:
        return self._exactly_once or bool(barrier.savepoint)

    def _release(self) -> None:
        """Let channels go on, but for those that wait for another checkpoint."""
        self.blocked.clear()
        for pending in self._pending.values():
            if self._aligns(pending.barrier):
                self.blocked |= pending.delivered & self._open
