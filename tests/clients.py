"""A client of a dispatcher, without a connection."""

from __future__ import annotations

from typing import Any

from sluiceway.runtime.messages.base import Message

__all__ = ["Client"]


class Client:
    """Connection that keeps what is sent on it."""

    peer = "client"

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, message: Message) -> None:
        self.answers.append(message)

    def close(self) -> None:
        """Do nothing."""
