"""Output to the terminal from signal handlers."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["ERASE", "say_from_handler"]

ERASE: Final = "\r\x1b[2K"
"""Goes to the beginning of a terminal's line and clears it."""


def say_from_handler(text: str) -> None:
    """Write a line to stderr out of a signal handler, where the stream itself may be in the middle of a write."""
    try:
        fileno = sys.__stderr__.fileno()  # type: ignore[union-attr]
        # On a terminal it takes the place of the live line, and of the "^C" in it.
        os.write(fileno, f"{ERASE if os.isatty(fileno) else ''}{text}\n".encode())
    except (AttributeError, OSError, ValueError):
        return
