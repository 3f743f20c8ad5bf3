"""Paths of the core's own source files, which distinguish its stack frames from a user's."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["CORE"]

CORE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Directory of the package ``sluiceway``, with a separator at its end."""
