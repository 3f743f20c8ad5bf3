"""Consumer's end of the edges between tasks: input gates, which read channels fairly and merge them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sluiceway.elements import (
    BarrierAnnouncement,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    TerminationProbe,
    Watermark,
    WatermarkStatus,
)
from sluiceway.network.barrier_alignment import BarrierAlignment
from sluiceway.network.channel_state import Recording
from sluiceway.network.watermark_valve import WatermarkValve
from sluiceway.transport import Receiver

__all__ = ["InputGate"]

_LONG_FEEDBACK = 16
"""Elements queued in a feedback channel from which on it is read before all others."""


class _Channel(msgspec.Struct):
    """Channel of a gate.

    Attributes:
        index: its number, in the order of :meth:`InputGate.add_channel`.
        receiver: the consumer's end.
        feedback: whether it closes a loop.
        port: index of the task's input that it belongs to.
        overtakes: whether a checkpoint may begin ahead of what is queued in it.
        ready: whether it must not be added to the queue of readable channels: it is there, or blocked.
        ended: whether it has delivered the end of data.
        finished: whether it has delivered its last element.
    """

    index: int
    receiver: Receiver
    feedback: bool
    port: int
    overtakes: bool
    ready: bool = False
    ended: bool = False
    finished: bool = False


class _Recovered(msgspec.Struct):
    """Recovered in-flight batch of the checkpoint that the task was restored from."""

    index: int
    port: int
    batch: Batch[Any]
    overtakes: bool = True


class _Hold:
    """Marker that stops :meth:`InputGate.poll` until the task has taken the checkpoint that begins.

    A marker in the queue and not a flag: poll() looks at the head of the queue in any case, so that its usual way
    has no test of its own for a checkpoint that begins.
    """


_HOLD = _Hold()


class _NoChannel:
    index, port, overtakes = -1, 0, True


class InputGate:
    """All channels into one subtask, read fairly, with their control elements merged.

    Call order: :meth:`add_channel` for each channel, :meth:`start`, then :meth:`poll` until it has returned
    EndOfPartition; :meth:`close` at any time, once. From the task's thread only.

    Args:
        exactly_once: whether a channel waits behind its checkpoint barrier until the others have delivered theirs.

    Attributes:
        last: channel of the batch that was polled last.
        on_announced: called with the announcement of a barrier that may overtake later.
        on_overtaking: called with the barrier of an unaligned checkpoint that begins ahead of queued elements.
            From then on :meth:`poll` returns None until :meth:`record` is called, or the checkpoint is aborted.
        on_recorded: called when a recording completes that was not complete when it began.
        on_alignment: called when the first channel is blocked for alignment.
    """

    def __init__(self, *, exactly_once: bool = True) -> None:
        self.last: _Channel | _Recovered | _NoChannel = _NoChannel()
        self.on_announced: Callable[[BarrierAnnouncement], None] = lambda announcement: None
        self.on_overtaking: Callable[[CheckpointBarrier], None] = lambda barrier: None
        self.on_alignment: Callable[[], None] = lambda: None
        self.on_recorded: Callable[[], None] = lambda: None
        # The barrier of an unaligned checkpoint that waits for channels which cannot be overtaken.
        self._waiting_barrier: CheckpointBarrier | None = None
        self._delivered: set[int] = set()
        self._recording: Recording | None = None
        # The checkpoint whose snapshot the task takes now; 0 if none.
        self._begun = 0
        self._exactly_once = exactly_once
        self._alignment = BarrierAlignment(0)
        self._held: set[int] = set()
        self._channels: list[_Channel] = []
        self._ready: deque[int] = deque()
        # Returned by poll() before anything is read from a channel: recovered batches, merged control elements.
        self._pending: deque[Element | _Recovered | _Hold] = deque()
        # Quiet rounds that each channel has delivered for a termination probe, by iteration and channel.
        self._probes: dict[str, dict[int, int]] = {}
        self._started = False
        self._valve = WatermarkValve(0)
        # Alignment and watermarks number the channels without feedback; ``_valve_index`` maps a channel to that
        # number, ``_forward`` maps it back.
        self._valve_index: list[int] = []
        self._forward: list[int] = []

    def add_channel(
        self, receiver: Receiver, *, feedback: bool = False, port: int = 0, overtakes: bool = False
    ) -> None:
        """Add a channel. Feedback channels are ignored for watermarks and for the end of data.

        Args:
            receiver: the consumer's end of the channel.
            feedback: whether it closes a loop.
            port: index of the task's input that it belongs to.
            overtakes: whether a checkpoint may begin ahead of what is queued in it.
        """
        self._channels.append(_Channel(len(self._channels), receiver, feedback, port, overtakes))

    def add_recovered(self, source: int, port: int, batch: Batch[Any]) -> None:
        """Queue a recovered batch ahead of all channels; ``source`` is its channel index in recordings."""
        self._pending.append(_Recovered(source, port, batch))

    def start(self) -> None:
        """Begin reading; call when all channels are added."""
        self._started = True
        forward = self._forward = [i for i, c in enumerate(self._channels) if not c.feedback]
        self._valve = WatermarkValve(len(forward))
        self._valve_index = [forward.index(i) if i in forward else -1 for i in range(len(self._channels))]
        self._alignment = BarrierAlignment(len(forward), exactly_once=self._exactly_once)
        # Receivers may have woken this gate before its channels were complete.
        for index, channel in enumerate(self._channels):
            if channel.receiver.queued():
                self.wake(index)

    @property
    def port(self) -> int:
        """Index of the task's input that the batch polled last belongs to."""
        return self.last.port

    @property
    def watermark(self) -> int:
        """The merged watermark in ms."""
        return self._valve.current

    @property
    def valve(self) -> WatermarkValve:
        """Merge of the watermarks; :meth:`start` replaces it."""
        return self._valve

    def wake(self, channel: int) -> None:
        """Mark a channel as readable. :meth:`start` finds channels that were readable before it."""
        if not self._started:
            return
        entry = self._channels[channel]
        if not entry.ready:
            entry.ready = True
            self._ready.append(channel)

    def poll(self) -> Element | None:
        """Return the next batch or merged control element, or None if nothing can be read now.

        Raises:
            BaseException: a producer has failed, or a channel is corrupt.
        """
        while True:
            if self._pending:
                given = self._pending.popleft()
                if type(given) is _Recovered:
                    self.last = given
                    return given.batch
                if given is _HOLD:
                    self._pending.appendleft(_HOLD)
                    return None
                return given  # type: ignore[return-value]
            if not self._ready:
                return None
            index = self._next_ready()
            channel = self._channels[index]
            # It has given all it had: that its link is lost since, with the worker of its producer, is no failure.
            # It stays marked as ready, so that it is not marked again.
            if channel.finished:
                continue
            element = channel.receiver.receive()
            # Behind the other readable channels again: one that always has data must not starve the rest.
            if channel.receiver.queued():
                self._ready.append(index)
            else:
                channel.ready = False
            # Recorded before it is merged, as merging may end the recording.
            if self._recording is not None and element is not None:
                self._record(self._recording, index, element)
            if type(element) is Batch:
                self.last = channel
                return element
            if element is not None:
                self._merge(index, channel, element)

    def start_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint whose producers have all finished; its barrier follows what they sent."""
        self._align(self._alignment.start(barrier))
        # Unaligned from the start: without producers nothing will announce the barrier.
        if barrier.aligned_ms == 0:
            self.overtake(barrier)

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Abort a checkpoint and unblock the channels that waited for it."""
        if self._recording is not None and self._recording.checkpoint_id == checkpoint_id:
            self._recording = None
        if self._begun == checkpoint_id:
            self._release_hold()
        self._align(self._alignment.abort(checkpoint_id))

    # ---- what overtakes -------------------------------------------------------------------------------------

    def take_urgent(self, index: int) -> None:
        """Read the urgent elements of a channel. They may begin a checkpoint."""
        channel = self._channels[index]
        while (element := channel.receiver.receive_urgent()) is not None:
            if type(element) is CheckpointBarrier:
                recording = self._recording
                if recording is not None and recording.checkpoint_id == element.checkpoint_id:
                    recording.announced(index, channel.receiver.waiting())
                    self._end_if_complete(recording)
                else:
                    self.overtake(element)
            elif type(element) is BarrierAnnouncement:
                if not self._alignment.is_over(element.checkpoint_id):
                    self.on_announced(element)
            else:
                self._merge(index, channel, element)

    def overtake(self, barrier: CheckpointBarrier) -> None:
        """Begin an unaligned checkpoint as soon as the channels that must align have delivered its barrier."""
        # The barrier may be aligned already but not polled yet. Then all channels have delivered it, and nothing
        # in them belongs to the checkpoint; recovered batches in front of it may still do.
        for position, element in enumerate(self._pending):
            if type(element) is CheckpointBarrier and element.checkpoint_id == barrier.checkpoint_id:
                del self._pending[position]
                self._delivered = set(range(len(self._forward)))
                self._hold(barrier)
                return
        # An older checkpoint may time out here before its abort arrives, and must not replace a newer one.
        waiting = self._waiting_barrier
        is_older = waiting is not None and waiting.checkpoint_id > barrier.checkpoint_id
        if not is_older and not self._alignment.is_over(barrier.checkpoint_id):
            self._waiting_barrier = barrier
            self._begin()

    def record(self, checkpoint_id: int, remainder: Batch[Any] | None = None) -> Recording:
        """Return the recording of a checkpoint that has begun, and let :meth:`poll` continue.

        Args:
            checkpoint_id: the checkpoint.
            remainder: unprocessed part of the batch that was polled last.
        """
        self._release_hold()
        recording = Recording(checkpoint_id)
        if remainder is not None:
            recording.add(self.last.index, remainder)
        # What a restore has queued here belongs to no channel, and would be lost if this checkpoint left it out.
        for element in self._pending:
            if type(element) is _Recovered:
                recording.add(element.index, element.batch)
        for number, index in enumerate(self._forward):
            channel = self._channels[index]
            if number not in self._delivered and not channel.finished:
                recording.begin(index, channel.receiver.waiting())
        self._recording = None if recording.complete else recording
        return recording

    def _begin(self) -> None:
        # Called again after each barrier and each end: the last channel that must align may have delivered it.
        barrier = self._waiting_barrier
        if barrier is None:
            return
        if self._alignment.is_over(barrier.checkpoint_id):
            self._waiting_barrier = None
            return
        for number, index in enumerate(self._forward):
            waits = not self._channels[index].overtakes
            if waits and not self._alignment.delivered(number, barrier.checkpoint_id):
                return
        self._waiting_barrier = None
        given, self._delivered = self._alignment.overtake(barrier)
        self._align(given)
        self._hold(barrier)

    def _hold(self, barrier: CheckpointBarrier) -> None:
        """Start the task's snapshot, and hold channels that have delivered the barrier until it is taken."""
        self._begun = barrier.checkpoint_id
        # Without the hold, the poll that read the last aligned barrier went on to a batch behind it, which then
        # was in the state and, at the producer, behind the barrier.
        if _HOLD not in self._pending:
            self._pending.appendleft(_HOLD)
        self.on_overtaking(barrier)

    def _release_hold(self) -> None:
        self._begun = 0
        if _HOLD in self._pending:
            self._pending.remove(_HOLD)

    def _record(self, recording: Recording, index: int, element: Element) -> None:
        recording.received(index, element)
        self._end_if_complete(recording)

    def _end_if_complete(self, recording: Recording) -> None:
        if recording.complete:
            self._recording = None
            self.on_recorded()

    def close(self) -> None:
        """Drop what is queued, and let the producers continue without this consumer."""
        for channel in self._channels:
            channel.receiver.close()
        self._ready.clear()
        self._pending.clear()

    @property
    def bytes_in(self) -> int:
        """Bytes received from other workers."""
        return sum(c.receiver.bytes_in for c in self._channels)

    @property
    def ready(self) -> bool:
        """True if an element can be read now."""
        return bool(self._ready or self._pending)

    def queued(self) -> int:
        """Return the number of elements queued in the channels."""
        return sum(c.receiver.queued() for c in self._channels)

    def loops_ended(self) -> bool:
        """Return whether all feedback channels have finished."""
        return all(c.finished for c in self._channels if c.feedback)

    def _next_ready(self) -> int:
        # A loop that fills faster than it drains is drained first, so that its memory stays bounded: feedback
        # channels have no credit limit.
        for position, index in enumerate(self._ready):
            channel = self._channels[index]
            if channel.feedback and channel.receiver.queued() > _LONG_FEEDBACK:
                del self._ready[position]
                return index
        return self._ready.popleft()

    def _merge(self, index: int, channel: _Channel, element: Element) -> None:
        # Feedback channels do not take part in watermarks, alignment or the end of data: a loop would wait for
        # itself.
        out = self._pending.append
        match element:
            case Watermark():
                if not channel.feedback:
                    self._time(*self._valve.watermark(self._valve_index[index], element))
            case WatermarkStatus():
                if not channel.feedback:
                    self._time(*self._valve.status(self._valve_index[index], element))
            case TerminationProbe():
                self._probes.setdefault(element.iteration, {})[index] = element.quiet_rounds
                self._complete_probes()
            case EndOfData():
                channel.ended = True
                if not channel.feedback and all(c.ended for c in self._channels if not c.feedback):
                    out(element)
            case CheckpointBarrier():
                self._align(self._alignment.barrier(self._valve_index[index], element))
                self._begin()
            case CancelCheckpointMarker():
                self._align(self._alignment.cancel(self._valve_index[index], element))
            case EndOfPartition():
                channel.finished = True
                channel.ended = True
                self._complete_probes()
                if not channel.feedback:
                    self._align(self._alignment.finished(self._valve_index[index]))
                    # A barrier that waited for this channel alone can begin now.
                    self._begin()
                if all(c.finished for c in self._channels if not c.feedback):
                    out(element)
            case _:
                out(element)

    def _time(self, status: WatermarkStatus | None, risen: Watermark | None) -> None:
        """Forward changes of the merged watermark and status."""
        # The watermark first: consumers ignore the watermarks of idle channels.
        self._pending.extend(element for element in (risen, status) if element is not None)

    def _align(self, given: Sequence[Element]) -> None:
        """Forward merged barriers, and block or unblock channels."""
        self._pending.extend(given)
        blocked = self._alignment.blocked
        if blocked == self._held:
            return
        if not self._held:
            self.on_alignment()
        for number, index in enumerate(self._forward):
            if (number in blocked) == (number in self._held):
                continue
            channel = self._channels[index]
            if number in blocked:
                if channel.ready and index in self._ready:
                    self._ready.remove(index)
                channel.ready = True  # not in the queue of readable channels: wake() must not add it
            elif channel.receiver.queued():
                self._ready.append(index)
            else:
                channel.ready = False
        self._held = set(blocked)

    def _complete_probes(self) -> None:
        # Sent on when every channel has delivered the probe; a finished channel cannot hold records any more. The
        # head of the loop waits for its feedback channels only: its inputs have ended by the time it sends a
        # probe.
        for iteration, seen in list(self._probes.items()):
            loop = [i for i, c in enumerate(self._channels) if c.feedback] or range(len(self._channels))
            if all(i in seen or self._channels[i].finished for i in loop):
                del self._probes[iteration]
                self._pending.append(TerminationProbe(iteration, min(seen.values())))
