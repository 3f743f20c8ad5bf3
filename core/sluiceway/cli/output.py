"""Standard streams that are closed, or whose reader went away, as ``sluiceway run ... | head`` does."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Final

import click

from sluiceway.util.visible_text import visible_on

__all__ = [
    "directory_is_gone",
    "flush",
    "forget_stdout",
    "hint",
    "ignore_full_stderr",
    "is_broken_pipe",
    "is_unwritable",
    "open_closed_streams",
    "say",
]

_ECHO: Final = click.echo.__code__


def say(text: str = "", *, err: bool = False) -> None:
    """Print text on stdout; everything that commands print goes through here.

    On a terminal characters that would change it are shown as escapes. Files and pipes get the text as it is.

    Args:
        text: one or several lines, without the last end of line.
        err: print on stderr.
    """
    # Without "color" click leaves out the escape sequences of colours, which here belong to the text.
    click.echo(visible_on(sys.stderr if err else sys.stdout, text), err=err, color=True)


def open_closed_streams() -> None:
    """Open standard streams that were closed before the start, as by ``2>&-``, on ``/dev/null``.

    Python has None in place of such a stream. The next file or socket that the process opened would get its
    number, and with it whatever C libraries and child processes write to standard error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # In ascending order, as open() takes the lowest free number.
            os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
            os.set_inheritable(number, True)
            if getattr(sys, name) is None:
                setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def ignore_full_stderr() -> None:
    """Have standard error drop what cannot be written, as on a full disk, except to a reader that went away.

    What is written there says how a command fares: its results and its exit code do not depend on that.
    """
    stream = sys.stderr
    if not isinstance(stream, io.TextIOWrapper):
        return
    write, flush = stream.write, stream.flush

    def write_if_possible(text: str) -> int:
        try:
            return write(text)
        except BrokenPipeError:
            raise
        except OSError:
            return len(text)

    def flush_if_possible() -> None:
        try:
            flush()
        except BrokenPipeError:
            raise
        except OSError:
            pass

    # Attributes of the stream itself, so that whoever holds it already, as the handlers of loggers do, has them.
    vars(stream).update(write=write_if_possible, flush=flush_if_possible)


def is_broken_pipe(error: BaseException) -> bool:
    """Return whether an error says that standard output has no reader any more."""
    from sluiceway.connector.lib.print import OutputClosedError

    kinds = (BrokenPipeError, OutputClosedError)
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and not isinstance(cause, kinds) and id(cause) not in seen:
        seen.add(id(cause))  # users' causes may go in circles
        cause = cause.__cause__
    return isinstance(cause, kinds) and _stdout_is_gone()


def _stdout_is_gone() -> bool:
    # The error itself may be of a socket's; and a flush tells nothing where Python runs unbuffered.
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def is_unwritable(error: BaseException) -> bool:
    """Return whether an error is that of printing a command's output, on a full disk or in a narrow encoding."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    kinds = (OSError, UnicodeEncodeError)
    return isinstance(error, kinds) and last is not None and last.tb_frame.f_code in (_ECHO, flush.__code__)


def hint(error: BaseException) -> str:
    """Return the sentence about how output becomes writable; empty: there is none."""
    is_narrow = isinstance(error, UnicodeEncodeError)
    return ". PYTHONIOENCODING=utf-8:backslashreplace makes it take every character" if is_narrow else ""


def flush() -> None:
    """Write buffered output; a stream that was closed before the start is none."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def directory_is_gone(error: BaseException) -> bool:
    """Return whether an error is that of a working directory which was removed."""
    if not isinstance(error, FileNotFoundError):
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def forget_stdout() -> None:
    """Discard buffered output, which the interpreter would fail to write at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
