"""Columns on standard output."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.cli.output import say
from sluiceway.util.visible_text import padded, visible_line, width_of

__all__ = ["aligned", "print_table"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a heading, each column as wide as its widest entry, and each row on one line."""
    for line in aligned([head, *([visible_line(cell) for cell in row] for row in rows)]):
        say(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with columns as wide as their widest cells on a terminal."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]
