"""Allocator of C memory: freed blocks stay in the process while columns flow, instead of going back to the system.

A step in columns makes and frees arrays of half a megabyte for each batch. glibc gives such blocks back to the
system at once, and each page of the next array is a page fault: measured, a tenth of the processor time of a job,
and half of the time of single steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, Final

__all__ = ["keep_freed_memory"]

KEPT_BYTES: Final = 64 << 20
"""Freed memory at the end of the heap that is not given back; what is between blocks in use comes on top."""

_LARGEST_BYTES: Final = 16 << 20
"""Blocks from this size on are mapped by themselves and given back when they are freed."""

# Numbers of the parameters in glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

_CHOSEN: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@cache
def keep_freed_memory() -> bool:
    """Have glibc keep 64 MB of freed memory at the end of the heap, for the rest of the process.

    Returns:
        False if nothing was changed: the C library is another one, or the environment has chosen such parameters.
    """
    if any(name in os.environ for name in _CHOSEN) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    set_parameter = _mallopt()
    if set_parameter is None:
        return False
    # Either switches off that glibc adapts both to the blocks that are freed.
    return bool(set_parameter(_MMAP_THRESHOLD, _LARGEST_BYTES) and set_parameter(_TRIM_THRESHOLD, KEPT_BYTES))


def _mallopt() -> Callable[[int, int], Any] | None:
    """Return glibc's function; None with another C library."""
    if not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None
    import ctypes

    found: Callable[[int, int], Any] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return found
