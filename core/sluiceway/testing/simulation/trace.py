"""Trace of a simulation: its events, in order."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

__all__ = ["Event", "Trace"]


class Event(NamedTuple):
    """Event of a simulation.

    Attributes:
        at_us: when, in microseconds of virtual time since the start.
        step: the turn of a process in or after which it happened; they are counted over all of them, from 1.
        where: ``job manager``, ``worker-1``, ...
        what: what it was.
    """

    at_us: int
    step: int
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_us / 1000:12.3f} ms  step {self.step:<6} {self.where:<12} {self.what}"


class Trace:
    """Events of a simulation. Runs with equal digests had the same events in the same order."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __str__(self) -> str:
        return "\n".join(map(str, self._events))

    def add(self, event: Event) -> None:
        """Append an event."""
        self._events.append(event)

    @property
    def digest(self) -> str:
        """SHA-256 of all events, in hexadecimal."""
        digest = sha256()
        for event in self._events:
            digest.update(repr(tuple(event)).encode())
        return digest.hexdigest()

    def tail(self, count: int = 30) -> str:
        """Return the last events as text, one per line."""
        return "\n".join(map(str, self._events[-count:]))

    def matching(self, text: str) -> list[Event]:
        """Return the events whose ``what`` or ``where`` contains ``text``."""
        return [event for event in self._events if text in event.what or text in event.where]
