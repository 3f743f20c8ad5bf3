"""Unreliable delivery of messages about checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sluiceway.errors import CheckpointFailedError
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.payload import Cause
from sluiceway.runtime.messages.tasks import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    Drained,
    TriggerCheckpoint,
)
from sluiceway.testing.simulation.loop import Node
from sluiceway.testing.simulation.world import World

__all__ = ["UnreliableMessages"]

_ABOUT_CHECKPOINTS: Final = (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    Drained,
    TriggerCheckpoint,
)
_LONGEST_DELAY_US: Final = 200_000


class UnreliableMessages:
    """Filter that loses, duplicates and delays messages about checkpoints.

    The connections between processes do none of that by themselves. But whoever relies on it that each message
    comes, and comes once, may not notice when one that has come is not acted upon.

    Args:
        world: decides by lot.
        chance: probability that a message is changed in delivery.
    """

    def __init__(self, world: World, chance: float) -> None:
        self.chance = chance
        self._world = world

    def to_worker(self, node: Node, send: Callable[[str, Message], None], worker: str, message: Message) -> None:
        """Deliver a message of the job manager to a worker."""
        self._send(node, f"to {worker}", partial(send, worker), message)

    def to_manager(self, node: Node, send: Callable[[Message], None], message: Message) -> None:
        """Deliver a message of a worker to the job manager."""
        if isinstance(message, AcknowledgeCheckpoint) and self._happens():
            self._world.note(
                node.name, f"declines checkpoint {message.checkpoint} in the place of {message.attempt}"
            )
            why = Cause(CheckpointFailedError("the simulation has it declined"))
            message = DeclineCheckpoint(message.job, message.epoch, message.attempt, message.checkpoint, why)
        self._send(node, f"of {node.name}", send, message)

    def _happens(self) -> bool:
        return self.chance > 0 and self._world.chance.random() < self.chance

    def _send(self, node: Node, whose: str, send: Callable[[Message], None], message: Message) -> None:
        if not isinstance(message, _ABOUT_CHECKPOINTS) or not self._happens():
            send(message)
            return
        world, name = self._world, type(message).__name__
        what = world.chance.choice(("lost", "doubled", "late"))
        if what == "late" and isinstance(message, TriggerCheckpoint):
            # Splits assigned after it must not pass it: the enumerator's state does not hold them.
            send(message)
            return
        world.note("the network", f"a {name} {whose} is {what}")
        if what == "doubled":
            send(message)
        if what != "lost":
            delay_us = int(_LONGEST_DELAY_US * world.chance.random() ** 2)
            world.after(delay_us, lambda: node.loop.soon(lambda: send(message)))
