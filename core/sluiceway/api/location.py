"""Where in the user's program a step was written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import sluiceway

__all__ = ["caller_location"]

_PACKAGE: Final = str(Path(sluiceway.__file__).parent) + os.sep


def caller_location() -> str:
    """``path:line`` of the innermost caller outside this package, or ``""`` if there is none.

    The path is relative to the working directory where the file is below it.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
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
