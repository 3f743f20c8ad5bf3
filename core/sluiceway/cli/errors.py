"""Errors on the command line: the user's own frames, those of the engine only on demand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluiceway import exit_codes
from sluiceway.cli import output
from sluiceway.cli.output import say
from sluiceway.errors import ConfigurationError, ConnectorError, SluicewayError
from sluiceway.util.redaction import redact

if TYPE_CHECKING:
    from traceback import TracebackException

    import click

    from sluiceway.runtime.failures.users_frames import UsersFrames

__all__ = ["TRACEBACK_FLAG", "report", "show", "wants_engine_frames", "warn"]

TRACEBACK_FLAG: Final = "sluiceway.traceback"
"""Key in ``click.Context.meta`` that notes whether ``--traceback`` was given."""

_VARIABLE: Final = "SLUICEWAY_TRACEBACK"
# The mark of sluiceway.runtime.failures.explanation, which is not loaded for it alone.
NOTED: Final = "_sluiceway_noted"
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep


def warn(message: str) -> None:
    """Write a warning to stderr."""
    say(f"warning: {redact(message)}", err=True)


def wants_engine_frames(ctx: click.Context) -> bool:
    """Return whether ``--traceback`` or ``SLUICEWAY_TRACEBACK=1`` asks for the frames of the engine."""
    return bool(ctx.meta.get(TRACEBACK_FLAG)) or os.environ.get(_VARIABLE, "") not in ("", "0")


def report(error: BaseException, ctx: click.Context) -> int:
    """Write an error that ends a command to stderr, and return the exit code."""
    if output.directory_is_gone(error):
        error = ConfigurationError("the working directory was removed: change to another one")
    if output.is_unwritable(error):
        error = ConnectorError(f"cannot print: {error}{output.hint(error)}")
    show(error, engine_frames=wants_engine_frames(ctx))
    return exit_codes.of(error)


def show(error: BaseException, engine_frames: bool = False) -> None:
    """Write an error to stderr.

    Args:
        error: one of ours becomes a paragraph, any other exception a traceback, both with their notes.
        engine_frames: whether to show every frame there is, for ours too.
    """
    from sluiceway.runtime.failures.error_texts import LIMIT_S, cut, describe, frames_of, within

    # One with notes was raised by a step's function, and is no Ctrl-C.
    if isinstance(error, KeyboardInterrupt) and not getattr(error, NOTED, False):
        say("cancelled", err=True)
        return
    # The methods of a user's exception may do anything, and its text may be of any size.
    say(
        within(
            LIMIT_S,
            lambda: cut("\n".join(_told(error, engine_frames)).splitlines()),
            lambda _: frames_of(error, describe(error)),
        ),
        err=True,
    )


def _told(error: BaseException, engine_frames: bool) -> list[str]:
    """Return the text of an error, before it is cut."""
    if isinstance(error, SluicewayError) and not engine_frames:
        return _raised_in_step(error) or [
            f"error: {error}",
            *(f"  {line}" for note in getattr(error, "__notes__", ()) for line in str(note).splitlines()),
        ]
    if not engine_frames and (lines := _of_worker(error)):
        return lines
    from traceback import TracebackException

    told = TracebackException.from_exception(error)
    before = []
    if not engine_frames:
        # Notes say that a step's function failed, even if that is a built-in one without a frame: map(int).
        reached = bool(_users_frames().of_stack(told.stack))
        if reached or getattr(error, "__notes__", None) or isinstance(error, SyntaxError):
            _leave_out_engine(told)
        else:
            before = ["error: a fault inside Sluiceway or a plugin, not in the pipeline's own code:"]
    if isinstance(error, (AttributeError, ImportError)) and (hiding := list(_hiding_files())):
        before = [
            f"error: {file} hides the module {name!r} of the standard library from what imports it: rename it"
            for name, file in hiding
        ]
    # Without frames there would still be the heading of a traceback.
    formatted = told.format() if told.stack or told.__cause__ else told.format_exception_only()
    return before + "".join(formatted).splitlines()


def _hiding_files() -> Iterator[tuple[str, str]]:
    """Yield the imported modules that hide one of the standard library, with their files."""
    import sysconfig

    standard = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    for name in sorted(sys.stdlib_module_names.intersection(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        # An installed package may replace a module on purpose, as setuptools does distutils.
        if isinstance(file, str) and not file.startswith(standard) and f"-packages{os.sep}" not in file:
            yield name, file


def _raised_in_step(error: SluicewayError) -> list[str]:
    """Return the traceback of one of our own errors that a step's function has caused; empty if none has.

    Which line has used state without a key, or called ``sys.exit()``, its message alone does not say.
    """
    if not getattr(error, NOTED, False) and type(error).__name__ != "WorkerError":
        return []
    if lines := _of_worker(error, notes_suffice=False):
        return lines
    from traceback import TracebackException

    told = TracebackException.from_exception(error)
    users = _users_frames()
    causing = users.of_stack(told.__cause__.stack) if told.__cause__ else []
    if isinstance(error, ConnectorError):
        # The message says what was refused; the frames of the library that a connector has asked say no more.
        causing = [frame for frame in causing if not _is_of_library(frame.filename)]
    if not users.of_stack(told.stack) and not causing:
        return []
    _leave_out_engine(told)
    return "".join(told.format()).splitlines()


def _of_worker(error: BaseException, *, notes_suffice: bool = True) -> list[str]:
    """Return the traceback that a worker sent with an error, without the engine's frames; empty if none was sent.

    All that it says is said again by the error, but for the notes that the job manager has added.

    Args:
        error: it.
        notes_suffice: show it without any frame of the user's, too, if it has notes.
    """
    # Not imported here: where nothing has loaded it, no error has come from a worker.
    shipping = sys.modules.get("sluiceway.runtime.messages.pickling")
    if shipping is None or not isinstance(error.__cause__, shipping.RemoteTraceback):
        return []
    from sluiceway.runtime.failures.users_frames import has_frames

    said = str(error.__cause__).splitlines()
    lines = _users_frames().of_lines(said)
    notes = getattr(error, "__notes__", ())
    known = set(said)
    shows = has_frames(lines) or (notes and notes_suffice)
    return [*lines, *(note for note in notes if not known.issuperset(note.splitlines()))] if shows else []


def _is_of_library(filename: str) -> bool:
    return f"-packages{os.sep}" in filename or filename.startswith((_STANDARD, "<frozen "))


def _users_frames() -> UsersFrames:
    from sluiceway.runtime.failures.users_frames import UsersFrames

    return UsersFrames(_folders_of_plugins_and_click())


def _folders_of_plugins_and_click() -> Iterator[str]:
    if "click" in sys.modules:
        yield str(Path(sys.modules["click"].__file__ or "").parent) + os.sep
    if "sluiceway.plugins.manager" in sys.modules:
        from sluiceway.plugins import default_manager

        yield from default_manager().folders()


def _leave_out_engine(told: TracebackException) -> None:
    users = _users_frames()
    todo, seen = [told], {id(told)}
    while todo:  # not recursive: users' causes and groups may be thousands deep
        each = todo.pop()
        each.stack[:] = users.of_stack(each.stack)
        for other in (each.__cause__, each.__context__, *(each.exceptions or ())):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)
