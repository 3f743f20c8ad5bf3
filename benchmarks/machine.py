"""Facts about the machine and the installation that figures depend on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["facts", "load", "warnings"]

_BUSY = 0.3
_PACKAGES = ("msgspec", "rocksdict", "pyarrow", "pyzmq")


def facts() -> dict[str, Any]:
    """Versions, the processor, and the load before the first benchmark."""
    return {
        "sluiceway": version("sluiceway"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{package: found for package in _PACKAGES if (found := _version(package)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "load": load(),
    }


def load() -> float:
    """Processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def warnings(known: dict[str, Any], later: str = "") -> list[str]:
    """Reasons not to trust the figures.

    Args:
        known: the facts, with the load that is judged.
        later: a benchmark that is not the first one: those before it are part of the load, and may use all cores.
    """
    if known["load"] <= (_BUSY + bool(later)) * known["cores"]:
        return []
    return [
        f"the machine was busy before {later or 'it'} began: load {known['load']} on {known['cores']} cores",
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
