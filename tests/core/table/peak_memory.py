"""Peak of the memory of a process, for programs that tests start."""

from __future__ import annotations

from pathlib import Path

__all__ = ["peak_kib"]


def peak_kib() -> int:
    """Return the most memory that this process has had, in KiB.

    Not ``ru_maxrss``: it begins with that of the process which has started this one, until ``exec``.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
