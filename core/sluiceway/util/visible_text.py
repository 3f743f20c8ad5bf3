"""Characters that change a terminal instead of being seen on it, shown as escapes.

Names, keys, records and errors are of any origin: on a terminal their control characters would move the cursor,
set the title or hide what follows, and their marks of writing direction would reorder it.
"""

from __future__ import annotations

import os
import re
from itertools import accumulate
from typing import Final, TextIO
from unicodedata import category, east_asian_width

__all__ = [
    "cut_to",
    "is_terminal",
    "moves_cursor",
    "padded",
    "visible",
    "visible_line",
    "visible_on",
    "width_of",
]

# DEL and the control characters of Latin-1, marks of writing direction, halves of surrogate pairs.
_OTHERS: Final = "\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSEEN: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_OTHERS}]")
_UNSEEN_OR_BREAK: Final = re.compile(f"[\x00-\x1f{_OTHERS}]")


def visible(text: str) -> str:
    r"""Return a text with escapes, such as ``\x1b``, in place of unseen characters; lines and tabs stay."""
    return _UNSEEN.sub(_escape, text)


def visible_line(text: str) -> str:
    """Return a text as one line, with escapes for ends of lines and tabs, too."""
    return _UNSEEN_OR_BREAK.sub(_escape, text)


def width_of(text: str) -> int:
    """Return the number of columns that a line of text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_width_of, text))


def padded(text: str, width: int) -> str:
    """Return a line of text with spaces behind it, up to a number of columns on a terminal."""
    return text + " " * (width - width_of(text))


def cut_to(text: str, width: int) -> str:
    """Return as much of a line of text as fits into a number of columns on a terminal."""
    if width_of(text) <= width:
        return text
    ends = accumulate(map(_width_of, text))
    return text[: sum(1 for end in ends if end <= width)]


def _width_of(char: str) -> int:
    # Marks that combine with the character before them, and joiners, take none; ideographs and emoji take two.
    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def visible_on(stream: TextIO, text: str) -> str:
    """Return a text as it is shown on a stream: as it is, unless that is a terminal."""
    return visible(text) if is_terminal(stream) else text


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal; one that is closed, or None, is not."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def moves_cursor(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that escape sequences can move the cursor of."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    # JSON has escaped the first 32 itself, and knows this form for the others: it stays valid.
    return repr(char)[1:-1] if char < " " else f"\\u{ord(char):04x}"
