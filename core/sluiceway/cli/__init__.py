"""Command line ``sluiceway``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes of :mod:`sluiceway.exit_codes`.

    Args:
        arguments: what follows the command's name; None: those of the process.
    """
    try:
        from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask

        # Ctrl-C counts after the imports: in the import of a module written in C, such as msgspec, it was seen to
        # crash the interpreter, and to get lost in a callback, whose exceptions are ignored.
        mask = pthread_sigmask(SIG_BLOCK, (SIGINT,))
        try:
            from sluiceway.cli.app import app
            from sluiceway.cli.output import ignore_full_stderr, open_closed_streams
        finally:
            pthread_sigmask(SIG_SETMASK, mask)
    except KeyboardInterrupt:
        # The imports take most of the time of a short command; later ones are reported by the app.
        from sluiceway.exit_codes import CANCELLED

        print("cancelled", file=sys.stderr)
        raise SystemExit(CANCELLED) from None

    open_closed_streams()
    ignore_full_stderr()
    app.main(args=None if arguments is None else list(arguments), prog_name="sluiceway")
    raise SystemExit(0)
