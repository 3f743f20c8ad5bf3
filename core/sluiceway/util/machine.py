"""Facts about the machine."""

from __future__ import annotations

import os

__all__ = ["usable_cpus"]


def usable_cpus() -> int | None:
    """Return the number of CPUs that this process may use; None if the platform does not tell."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()
