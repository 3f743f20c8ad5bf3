"""Contract of transports, which carry elements from a producer's subtask to a consumer's."""

from sluiceway.transport.channel import (
    ChannelId,
    CreditSource,
    Receiver,
    Sender,
    Transport,
)

__all__ = [
    "ChannelId",
    "CreditSource",
    "Receiver",
    "Sender",
    "Transport",
]
