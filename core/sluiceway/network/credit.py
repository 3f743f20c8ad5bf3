"""Credit-based flow control: ledgers that bound the batches in flight per channel.

A gate owns exclusive credits per channel, so that every channel always moves, and floating credits that go
where the backlog is. One credit allows the producer to send one batch.

Floating credits that no backlog needs are granted in advance to channels from other processes. A credit returns
from there only after a turn of both workers' loops; with two credits a producer was blocked for most of that time.
"""

from __future__ import annotations

from sluiceway.transport import CreditSource
from sluiceway.util.overriding import override

__all__ = ["EXCLUSIVE_CREDITS", "FLOATING_CREDITS", "GateCredits"]

EXCLUSIVE_CREDITS = 2
FLOATING_CREDITS = 8


class GateCredits:
    """Ledger of credits of one input gate. From the task's thread only.

    Args:
        exclusive: credits that belong to each channel, at least 1.
        floating: credits that the channels share.
        far: number of channels from other processes. They divide the floating credits among themselves from
            the start, and each keeps its part while no channel has a backlog that lacks credit.

    Raises:
        ValueError: ``exclusive`` is less than 1.
    """

    def __init__(
        self, exclusive: int = EXCLUSIVE_CREDITS, floating: int = FLOATING_CREDITS, *, far: int = 0
    ) -> None:
        if exclusive < 1:
            raise ValueError(f"a channel needs at least 1 exclusive credit, not {exclusive}: it could never send")
        self._exclusive = exclusive
        self._floating = floating
        self._share = floating // far if far else 0
        # The channel that was granted less than it needed last. While there is one, no credit is kept in advance.
        self._lacking: _ChannelCredits | None = None

    @property
    def free(self) -> int:
        """Floating credits that no channel holds."""
        return self._floating

    def channel(self, *, far: bool = False) -> CreditSource:
        """Return the ledger of one more channel; ``far`` if its producer is in another process."""
        return _ChannelCredits(self, self._exclusive, self._share if far else 0)


class _ChannelCredits(CreditSource):
    def __init__(self, gate: GateCredits, exclusive: int, ahead: int) -> None:
        self._gate = gate
        self._ahead = ahead
        self._floats = 0
        self._initial = exclusive + self._more(0, ahead)

    def initial(self) -> int | None:
        return self._initial

    def batch_taken(self, backlog: int) -> int:
        lacking = self._gate._lacking
        ahead = self._ahead if lacking is None else 0
        # One credit at a time goes back, with the batch that used it: the producer still holds the others.
        if backlog == 0 and self._floats > ahead:
            if lacking is self:
                self._gate._lacking = None
            self._give_back()
            # Returning 0 keeps the credit that the batch has used: it becomes a floating one again.
            return 0
        return 1 + self._more(backlog - 1, ahead - self._floats)

    def backlog_announced(self, backlog: int) -> int:
        return self._more(backlog)

    def closed(self) -> None:
        while self._floats:
            self._give_back()
        if self._gate._lacking is self:
            self._gate._lacking = None

    def _give_back(self) -> None:
        self._floats -= 1
        self._gate._floating += 1

    def _more(self, needed: int, wanted: int = 0) -> int:
        gate = self._gate
        taken = max(0, min(max(needed, wanted), gate._floating))
        self._floats += taken
        gate._floating -= taken
        if taken < needed:
            gate._lacking = self
        elif gate._lacking is self:
            gate._lacking = None
        return taken


class Unlimited(CreditSource):
    """Credit without limit, for feedback channels: a loop that waited for its own credit would never continue."""

    def initial(self) -> int | None:
        """Return None: no limit."""
        return None

    @override
    def batch_taken(self, backlog: int) -> int:
        return 0

    @override
    def backlog_announced(self, backlog: int) -> int:
        return 0
