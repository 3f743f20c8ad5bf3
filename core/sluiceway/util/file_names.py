"""Names of files and directories that are made from names of jobs."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["file_name", "file_name_of_id"]

_OTHER: Final = re.compile(r"[^\w.-]+")
_OTHER_THAN_ASCII: Final = re.compile(r"[^\w.-]+", re.ASCII)
_MOST_BYTES: Final = 120
"""File systems limit a name to 255 bytes, and callers add to it."""


def file_name(text: str) -> str:
    """Return the start of a text as a part of a file name, of at most 120 bytes; empty if no character fits one.

    Letters and digits of any script stay, so that names that differ mostly stay different. Other characters become
    hyphens.
    """
    name = _OTHER.sub("-", text).encode()[:_MOST_BYTES].decode(errors="ignore")
    return name.strip(".-")


def file_name_of_id(text: str) -> str:
    """Return the end of an id, which makes it unique, as a part of a file name, in ASCII."""
    return _OTHER_THAN_ASCII.sub("-", text)[-_MOST_BYTES:]
