"""Command lines of the engine's own processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from sluiceway.util.source_paths import CORE

__all__ = ["engine_command"]


def engine_command(module: str, *arguments: str, path: Sequence[str] | None = None) -> list[str]:
    """Return the command that runs a module of the engine in an interpreter of its own.

    ``python -m MODULE`` would look into the working directory first, where a user's ``random.py`` hides the module
    of the standard library that the engine imports. The search path travels as an argument, not in PYTHONPATH,
    which programs started by users' functions would inherit.

    Args:
        module: name of the module, which runs as ``__main__``.
        arguments: ``sys.argv[1:]`` of the module.
        path: ``sys.path`` to import Sluiceway itself from; None: the interpreter's own, and where it is now.
    """
    given = json.dumps([os.path.dirname(CORE.rstrip(os.sep))] if path is None else list(path))
    extent = "len(sys.path):" if path is None else ":"
    # The name comes first, so that it is seen in a list of processes that is as wide as a terminal.
    program = (
        f"module = {module!r}; import json, runpy, sys; sys.path[{extent}] = json.loads(sys.argv.pop()); "
        "runpy.run_module(module, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-P", "-c", program, *arguments, given]
