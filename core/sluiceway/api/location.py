"""Location of a step in the user's program."""

from __future__ import annotations

import os
import sys

from sluiceway.util.source_paths import CORE

__all__ = ["caller_location"]


def caller_location() -> str:
    """``path:line`` of the innermost caller outside this package, or ``""`` if there is none.

    The path is relative to the working directory where the file is below it.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(CORE):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    path = frame.f_code.co_filename
    try:
        here = os.getcwd() + os.sep
    except OSError:
        here = ""
    if here and path.startswith(here):
        path = path[len(here) :]
    return f"{path}:{frame.f_lineno}"
