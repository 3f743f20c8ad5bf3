"""The marker a plugin puts on its hook implementations: ``from sluiceway.hooks import hookimpl``."""

from __future__ import annotations

from typing import Final

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT: Final = "sluiceway"

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
hookspec: Final = pluggy.HookspecMarker(PROJECT)
