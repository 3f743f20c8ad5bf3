"""How the command line tells people of errors: the user's own frames, the engine's only on demand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluiceway.errors import SluicewayError

if TYPE_CHECKING:
    from traceback import FrameSummary, TracebackException

    import click

__all__ = ["TRACEBACK_FLAG", "show", "wants_engine_frames", "warn"]

TRACEBACK_FLAG: Final = "sluiceway.traceback"
"""Where a command leaves in ``click.Context.meta`` that ``--traceback`` was given."""

_VARIABLE: Final = "SLUICEWAY_TRACEBACK"
_CORE: Final = str(Path(__file__).parent.parent) + os.sep


def warn(message: str) -> None:
    """Say something that does not stop the command."""
    print(f"warning: {message}", file=sys.stderr)


def wants_engine_frames(ctx: click.Context) -> bool:
    """Whether ``--traceback`` or ``SLUICEWAY_TRACEBACK=1`` asks for the engine's own frames."""
    return bool(ctx.meta.get(TRACEBACK_FLAG)) or os.environ.get(_VARIABLE, "") not in ("", "0")


def show(error: BaseException, engine_frames: bool = False) -> None:
    """Write an error to stderr.

    Args:
        error: one of ours becomes a paragraph, any other exception a traceback, both with their notes.
        engine_frames: whether to show every frame there is, for ours too.
    """
    if isinstance(error, KeyboardInterrupt):
        print("cancelled", file=sys.stderr)
        return
    if isinstance(error, SluicewayError) and not engine_frames:
        print(f"error: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print("\n".join(f"  {line}" for line in str(note).splitlines()), file=sys.stderr)
        return
    from traceback import TracebackException

    told = TracebackException.from_exception(error)
    if not engine_frames:
        # Notes say that a step's function failed, even if that is a built-in one without a frame: map(int).
        users = any(_is_users(frame) for frame in told.stack) or getattr(error, "__notes__", None)
        if users or isinstance(error, SyntaxError):
            _leave_out_engine(told, set())
        else:
            print("error: a fault inside Sluiceway or a plugin, not in the pipeline's own code:", file=sys.stderr)
    for line in told.format() if told.stack or told.__cause__ else told.format_exception_only():
        print(line, end="", file=sys.stderr)


def _is_users(frame: FrameSummary) -> bool:
    name = frame.filename
    # "<sluiceway ...>": code that the engine generated; "<frozen ...>": the import system.
    return not (name.startswith((_CORE, "<sluiceway", "<frozen ")) or _is_plugin(name) or _is_click(name))


def _is_plugin(filename: str) -> bool:
    return any(filename.startswith(folder) for folder in _plugin_folders())


def _plugin_folders() -> list[str]:
    plugins = sys.modules.get("sluiceway.plugins.manager")
    if plugins is None:
        return []
    found = []
    for plugin in plugins.default_manager().plugins:
        module = sys.modules.get(plugin.target.partition(":")[0])
        found += [folder + os.sep for folder in getattr(module, "__path__", ())]
    return found


def _is_click(filename: str) -> bool:
    click = sys.modules.get("click")
    return click is not None and filename.startswith(str(Path(click.__file__ or "").parent) + os.sep)


def _leave_out_engine(told: TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    told.stack[:] = [frame for frame in told.stack if _is_users(frame)]
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _leave_out_engine(other, seen)
