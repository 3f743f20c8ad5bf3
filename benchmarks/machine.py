"""On what it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["facts", "warnings"]

_BUSY = 0.3


def facts() -> dict[str, Any]:
    """What decides how fast things go here, and how busy the machine was before it began."""
    return {
        "sluiceway": version("sluiceway"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": _cores(),
        "load": round(os.getloadavg()[0], 2),
    }


def warnings(known: dict[str, Any]) -> list[str]:
    """Why the figures should not be trusted."""
    if known["load"] > _BUSY * known["cores"]:
        return [f"the machine was busy before it began: load {known['load']} on {known['cores']} cores"]
    return []


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
