"""Credit-based flow control: who may send how many batches to whom.

A gate owns exclusive credits per channel, so that every channel always moves, and floating credits that go
where the backlog is. A credit stands for one batch that the receiver has room for.
"""

from __future__ import annotations

from sluiceway.transport import CreditSource

__all__ = ["EXCLUSIVE_CREDITS", "FLOATING_CREDITS", "GateCredits"]

EXCLUSIVE_CREDITS = 2
FLOATING_CREDITS = 8


class GateCredits:
    """The ledger of one input gate.

    Args:
        exclusive: credits that each channel has for itself, at least 1.
        floating: credits that the channels share.
    """

    def __init__(self, exclusive: int = EXCLUSIVE_CREDITS, floating: int = FLOATING_CREDITS) -> None:
        if exclusive < 1:
            raise ValueError(f"a channel needs at least 1 exclusive credit, not {exclusive}: it could never send")
        self._exclusive = exclusive
        self._floating = floating

    @property
    def free(self) -> int:
        """Floating credits that no channel has."""
        return self._floating

    def channel(self) -> CreditSource:
        """The ledger of one more channel."""
        return _ChannelCredits(self, self._exclusive)

    def _take(self, wanted: int) -> int:
        taken = min(wanted, self._floating)
        self._floating -= taken
        return taken

    def _give_back(self) -> None:
        self._floating += 1


class _ChannelCredits(CreditSource):
    def __init__(self, gate: GateCredits, exclusive: int) -> None:
        self._gate = gate
        self._exclusive = exclusive
        self._floats = 0

    def initial(self) -> int | None:
        return self._exclusive

    def batch_taken(self, backlog: int) -> int:
        if backlog == 0 and self._floats:
            self._floats -= 1
            self._gate._give_back()
            return 0
        return 1 + self._more(backlog - 1)

    def backlog_announced(self, backlog: int) -> int:
        return self._more(backlog)

    def closed(self) -> None:
        while self._floats:
            self._floats -= 1
            self._gate._give_back()

    def _more(self, wanted: int) -> int:
        if wanted <= 0:
            return 0
        taken = self._gate._take(wanted)
        self._floats += taken
        return taken


class Unlimited(CreditSource):
    """Credit for a feedback channel: a loop that had to wait for itself would never move again."""

    def initial(self) -> int | None:
        """No limit."""
        return None

    def batch_taken(self, backlog: int) -> int:
        """Nothing to grant."""
        return 0

    def backlog_announced(self, backlog: int) -> int:
        """Nothing to grant."""
        return 0
