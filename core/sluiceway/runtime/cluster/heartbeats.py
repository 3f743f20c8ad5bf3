"""Interval of the heartbeats of workers, standbys and the job manager."""

from __future__ import annotations

from typing import Final

__all__ = ["heartbeat_interval_s"]

_MOST_S: Final = 1.0
_IN_A_TIMEOUT: Final = 4
"""One heartbeat may come late, or not at all, without an end to the process."""


def heartbeat_interval_s(timeout_s: float) -> float:
    """Return the seconds between two heartbeats for a timeout of so many."""
    return min(_MOST_S, timeout_s / _IN_A_TIMEOUT)
