"""Waits: the events that a source or a sink returns instead of blocking."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Events to wait for: call again at any of these, or after a call of the context's ``wake``.

    Attributes:
        fileno: a file descriptor that becomes ready, or None.
        write: True to wait for it to be writable rather than readable.
        until: a reading of the context's ``clock.monotonic()`` (seconds), or None.
    """

    fileno: int | None = None
    write: bool = False
    until: float | None = None
