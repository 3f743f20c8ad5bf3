"""Pickling of values with classes and functions that cannot be imported, as those of scripts and notebooks."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import cloudpickle

__all__ = ["ValuePickler", "dumps_by_value"]

# What msgspec notes on a class that it has looked at: it cannot be pickled, and is made anew where it is missing.
_NOTES: Final = "__msgspec_cache__"


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler of cloudpickle that accepts classes inspected by msgspec, and keeps the file names of functions."""

    def reducer_override(self, obj: Any) -> Any:
        """Leave out what msgspec has noted on a class; keep the mark of fields without a default what it is."""
        if obj is dataclasses.MISSING:
            return "MISSING"  # by its name: a copy would be a default like any other
        if isinstance(obj, CodeType):
            # From 3.1.3 on, cloudpickle writes another name, and tracebacks and stack samples name no file.
            make, arguments = self.dispatch_table[CodeType](obj)[:2]
            return _code_of_file, (obj.co_filename, make, arguments)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and _NOTES in obj.__dict__ and isinstance(reduced, tuple) and len(reduced) > 2:
            attributes = reduced[2][0]
            attributes.pop(_NOTES, None)
        return reduced


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def dumps_by_value(value: object) -> bytes:
    """Pickle anything. Raises whatever pickle and the value raise."""
    buffer = io.BytesIO()
    ValuePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()
