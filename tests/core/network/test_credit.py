"""Credit: conserved, never negative, and no channel starves."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.elements import Batch, Element, Watermark
from sluiceway.network.credit import GateCredits, Unlimited
from sluiceway.network.local_channel import LocalTransport
from sluiceway.serializers import PickleSerializer
from sluiceway.transport import ChannelId

PICKLE = PickleSerializer()


def test_a_channel_without_credit_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 exclusive credit"):
        GateCredits(exclusive=0)


def test_backlog_draws_on_the_floating_credits_and_gives_them_back() -> None:
    gate = GateCredits(exclusive=1, floating=3)
    channel = gate.channel()
    assert channel.initial() == 1
    assert channel.backlog_announced(2) == 2
    assert gate.free == 1
    # Three granted, none left over: one comes back for the batch, one more for the longer backlog.
    assert channel.batch_taken(backlog=2) == 2
    assert gate.free == 0
    assert channel.batch_taken(backlog=0) == 0
    assert gate.free == 1
    channel.closed()
    assert gate.free == 3


def test_a_channel_from_another_process_has_its_part_of_the_floating_credits_ahead() -> None:
    gate = GateCredits(exclusive=2, floating=7, far=2)
    near, far, other = gate.channel(), gate.channel(far=True), gate.channel(far=True)
    assert [channel.initial() for channel in (near, far, other)] == [2, 5, 5]
    assert gate.free == 1
    assert far.batch_taken(backlog=0) == 1, "nobody else needs them"
    assert near.batch_taken(backlog=0) == 1
    assert gate.free == 1


def test_credit_ahead_goes_to_a_backlog_that_lacks_it_and_comes_back() -> None:
    gate = GateCredits(exclusive=1, floating=3, far=1)
    near, far = gate.channel(), gate.channel(far=True)
    assert near.backlog_announced(2) == 0
    assert far.batch_taken(backlog=0) == 0
    assert near.batch_taken(backlog=2) == 2
    assert far.batch_taken(backlog=0) == 1, "the other has what it wanted"
    assert near.batch_taken(backlog=0) == 0
    assert gate.free == 1
    assert far.batch_taken(backlog=0) == 2, "its part is complete again"
    assert gate.free == 0


@pytest.mark.parametrize("end", ["closed", "read"])
def test_a_channel_that_lacks_credit_no_more_leaves_the_others_theirs(end: str) -> None:
    gate = GateCredits(exclusive=1, floating=2, far=1)
    near, far = gate.channel(), gate.channel(far=True)
    near.backlog_announced(5)
    if end == "closed":
        near.closed()
    else:
        assert near.batch_taken(backlog=0) == 1
    assert far.batch_taken(backlog=0) == 1
    assert gate.free == 0


def test_a_feedback_channel_never_lacks_credit() -> None:
    transport = LocalTransport()
    id_ = ChannelId("loop", 0, 0)
    receiver = transport.receiver(id_, Unlimited(), lambda: None, PICKLE)
    sender = transport.sender(id_, lambda: None, PICKLE)
    for n in range(1000):
        sender.send(Batch([n]))
    assert sender.available()
    assert receiver.queued() == 1000


class CreditMachine(RuleBasedStateMachine):
    """Channels of one gate against plain queues: order is kept and credit is conserved."""

    @initialize(
        channels=st.integers(1, 4), exclusive=st.integers(1, 3), floating=st.integers(0, 5), far=st.integers(0, 4)
    )
    def start(self, channels: int, exclusive: int, floating: int, far: int) -> None:
        self.exclusive, self.floating = exclusive, floating
        self.gate = GateCredits(exclusive, floating, far=min(far, channels))
        transport = LocalTransport()
        self.sent: list[deque[Element]] = [deque() for _ in range(channels)]
        ids = [ChannelId("e", i, 0) for i in range(channels)]
        ledgers = [self.gate.channel(far=i < far) for i in range(channels)]
        self.receivers = [
            transport.receiver(id_, ledger, lambda: None, PICKLE) for id_, ledger in zip(ids, ledgers, strict=True)
        ]
        self.senders = [transport.sender(i, lambda: None, PICKLE) for i in ids]

    @rule(data=st.data(), n=st.integers())
    def send_batch(self, data: st.DataObject, n: int) -> None:
        i = data.draw(st.integers(0, len(self.senders) - 1))
        batch = Batch([n])
        was_free = self.senders[i].available()
        before = self.senders[i].backlog()
        self.senders[i].send(batch)
        self.sent[i].append(batch)
        if was_free:
            assert self.senders[i].backlog() == before == 0

    @rule(data=st.data(), n=st.integers(0, 9))
    def send_event(self, data: st.DataObject, n: int) -> None:
        i = data.draw(st.integers(0, len(self.senders) - 1))
        self.senders[i].send(Watermark(n))
        self.sent[i].append(Watermark(n))

    @precondition(lambda self: any(self.sent))
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        i = data.draw(st.sampled_from([i for i, s in enumerate(self.sent) if s]))
        # What was sent can always be read on: nobody waits for a credit that never comes.
        assert self.receivers[i].receive() == self.sent[i].popleft()

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert 0 <= self.gate.free <= self.floating
        in_channels = sum(self._held(i) for i in range(len(self.receivers)))
        assert in_channels + self.gate.free == self.exclusive * len(self.receivers) + self.floating

    def _held(self, i: int) -> int:
        channel = self.receivers[i]
        credit = channel._credit  # type: ignore[attr-defined]
        assert credit >= 0
        queued = sum(type(e) is Batch for e in channel._queue)  # type: ignore[attr-defined]
        return int(credit) + queued

    def teardown(self) -> None:
        if hasattr(self, "gate"):
            for receiver in self.receivers:
                receiver.close()
            assert self.gate.free == self.floating


TestCredit = CreditMachine.TestCase
TestCredit.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
