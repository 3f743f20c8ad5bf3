"""Columns on standard output."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.cli.output import say
from sluiceway.util.visible_text import visible_line

__all__ = ["print_table"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a heading, each column as wide as its widest entry, and each row on one line."""
    rows = [[visible_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
