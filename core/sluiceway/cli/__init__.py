"""Command line ``sluiceway``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes of :mod:`sluiceway.exit_codes`.

    Args:
        arguments: what follows the command's name; None: those of the process.
    """
    from sluiceway.cli.app import app
    from sluiceway.cli.output import open_closed_streams

    open_closed_streams()
    app.main(args=None if arguments is None else list(arguments), prog_name="sluiceway")
    raise SystemExit(0)
