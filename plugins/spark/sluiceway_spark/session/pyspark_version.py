"""Version of the installed PySpark, and the lowest that each way of using it needs."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["FORMAT", "LOWEST", "MICRO_BATCHES", "installed", "too_old"]

LOWEST: Final = (4, 0)
"""For batch jobs, hosted workers, ``SparkSource`` and ``SparkSink``."""

FORMAT: Final = (4, 1)
"""For the format ``sluiceway``: lets it be registered anew, and has writers of Arrow batches."""

MICRO_BATCHES: Final = (4, 2)
"""For micro-batches, and streams that the format reads.

It has ``transformWithState`` on rows, and Python sources of streams that plan what is available.
"""

_VERSION: Final = re.compile(r"^__version__.*?[\"'](\d+)\.(\d+)(\S*?)[\"']", re.MULTILINE)


@cache
def installed() -> str:
    """Return the version of PySpark, read without importing it; empty: it is unknown."""
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        # Under spark-submit it is no distribution that has metadata, but a directory of Spark's.
        with suppress(OSError):
            if found := _VERSION.search(Path(spec.origin).with_name("version.py").read_text()):
                return f"{found[1]}.{found[2]}{found[3]}"
    return ""


def too_old(needed: tuple[int, int]) -> str | None:
    """Return a clause if the installed PySpark is older than needed; None if it is not, or is unknown.

    Args:
        needed: major and minor version.
    """
    version = installed()
    if not version or tuple(map(int, version.split(".")[:2])) >= needed:
        return None
    return f"PySpark {needed[0]}.{needed[1]} or later is needed, and {version} is installed"
