"""The ends of a task, as they are opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sluiceway.config.settings import Settings
from sluiceway.runtime.task.channels import open_gate
from sluiceway.transport import ChannelId, CreditSource


class Opened:
    """A transport that notes the credit of its channels."""

    def __init__(self) -> None:
        self.credit: list[int | None] = []

    def receiver(self, channel: ChannelId, credit: CreditSource, wake: Any, serializer: Any) -> Any:
        self.credit.append(credit.initial())
        return SimpleNamespace(close=lambda: None, urgent=False)


def credit_of(*producers_at: str, feedback: tuple[str, ...] = ()) -> list[int | None]:
    """What the producers of a task at worker ``here`` begin with."""

    def input_from(places: tuple[str, ...], feedback: bool) -> Any:
        channels = [ChannelId("e", i, 0, producer_at=at, consumer_at="here") for i, at in enumerate(places)]
        return SimpleNamespace(
            record_type=None, channels=channels, feedback=feedback, port=0, overtakes=not feedback
        )

    inputs = [input_from(producers_at, False), input_from(feedback, True)]
    deployment: Any = SimpleNamespace(settings=Settings(), inputs=inputs, serializers=())
    transport: Any = Opened()
    open_gate(deployment, transport, lambda gate, channel: None)
    opened: list[int | None] = transport.credit
    return opened


def test_producers_on_other_workers_have_credit_ahead() -> None:
    assert credit_of("here", "there") == [2, 10]
    assert credit_of("here", "there", "yonder", "there") == [2, 4, 4, 4]


def test_a_loop_leaves_the_credit_of_others_alone() -> None:
    assert credit_of("there", feedback=("there", "there")) == [10, None, None]


def test_among_many_every_one_has_its_own() -> None:
    assert credit_of(*["there"] * 9) == [2] * 9
