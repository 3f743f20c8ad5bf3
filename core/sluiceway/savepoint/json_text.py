"""Values as JSON text, for display and for columns of mixed types."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from sluiceway.util.surrogates import encodable

__all__ = ["as_json", "as_text"]


def as_json(value: Any) -> str:
    """Return a value as JSON; parts that JSON cannot express are their ``repr`` as a string."""
    # The escape of half a surrogate pair is one of JSON, too.
    text: str = encodable(json.dumps(_plain(value), ensure_ascii=False))
    return text


def as_text(value: Any) -> str | None:
    """Return None and strings unchanged, dates, decimals and the like as unquoted text, and the rest as JSON."""
    if value is None or isinstance(value, str):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else as_json(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # JSON has no NaN, and readers refuse files with it
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(part) for part in value), key=repr)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, dt.timedelta):
        return msgspec.to_builtins(value)  # in ISO 8601
    return repr(value)
