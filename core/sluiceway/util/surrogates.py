"""Texts with half a surrogate pair, which UTF-8 has no bytes for.

Names of files that are not UTF-8 have some, so do texts decoded with ``surrogateescape``, and :mod:`json` makes
some. Errors of functions quote them. What only people read is written with escapes in their place.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["encodable", "json_bytes"]


def encodable(value: Any) -> Any:
    """Return a value of builtins with an escape for each half of a pair in its texts and keys."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(encodable, value))
    return value


def json_bytes(value: Any) -> bytes:
    """Return a value of builtins, structs and dataclasses as JSON, with escapes for what UTF-8 does not have."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(msgspec.to_builtins(value, str_keys=True)))
