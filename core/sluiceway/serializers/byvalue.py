"""Pickling of values with classes and functions that cannot be imported, as those of scripts and notebooks."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, Final

import cloudpickle

__all__ = ["ValuePickler", "dumps_by_value"]

# What msgspec notes on a class that it has looked at: it cannot be pickled, and is made anew where it is missing.
_NOTES: Final = "__msgspec_cache__"


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler of cloudpickle that also accepts classes inspected by msgspec."""

    def reducer_override(self, obj: Any) -> Any:
        """Leave out what msgspec has noted on a class; keep the mark of fields without a default what it is."""
        if obj is dataclasses.MISSING:
            return "MISSING"  # by its name: a copy would be a default like any other
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and _NOTES in obj.__dict__ and isinstance(reduced, tuple) and len(reduced) > 2:
            attributes = reduced[2][0]
            attributes.pop(_NOTES, None)
        return reduced


def dumps_by_value(value: object) -> bytes:
    """Pickle anything. Raises whatever pickle and the value raise."""
    buffer = io.BytesIO()
    ValuePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()
