"""Unpickler of plain data, which refuses everything that could run code."""

from __future__ import annotations

import datetime as dt
import io
import pickle
import pickletools
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from sluiceway.util.overriding import override
from sluiceway.windows.base import GlobalWindow, TimeWindow

__all__ = ["FindClass", "PlainUnpickler", "pickled_type", "plain_classes"]

FindClass: TypeAlias = Callable[[str, str], Any]

_DEEPEST: Final = 200
_PART: Final = 16
_MOST_SHARED: Final = 64 << 20


def _bytearray(*arguments: Any) -> bytearray:
    """Return the bytearray of a pickle, which has its bytes or its text: a mere length could be any."""
    if arguments and not isinstance(arguments[0], (bytes, str)):
        raise pickle.UnpicklingError("a bytearray is pickled with its bytes")
    return bytearray(*arguments)


# Written in C, so that a pickle can do nothing to the classes themselves.
_HARMLESS: Final = {
    ("datetime", "date"): dt.date,
    ("datetime", "datetime"): dt.datetime,
    ("datetime", "time"): dt.time,
    ("datetime", "timedelta"): dt.timedelta,
    ("datetime", "timezone"): dt.timezone,
    ("decimal", "Decimal"): Decimal,
    ("builtins", "complex"): complex,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): _bytearray,
}
# In Python: each pickle has one of its own.
_DERIVED: Final[dict[tuple[str, str], type]] = {
    ("sluiceway.persisted", "TimeWindow"): TimeWindow,
    ("sluiceway.persisted", "GlobalWindow"): GlobalWindow,
    # As stored before they had tags.
    ("sluiceway.windowing", "TimeWindow"): TimeWindow,
    ("sluiceway.windowing", "GlobalWindow"): GlobalWindow,
    ("uuid", "UUID"): UUID,
}


def plain_classes() -> FindClass:
    """Return a function that finds the classes of plain data for one pickle, and refuses all others."""
    own: dict[tuple[str, str], type] = {}

    def find_class(module: str, name: str) -> Any:
        wanted = (module, name)
        if (harmless := _HARMLESS.get(wanted)) is not None:
            return harmless
        if (base := _DERIVED.get(wanted)) is not None:
            return own.setdefault(wanted, type(name, (base,), {"__slots__": ()}))
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    return find_class


class PlainUnpickler(pickle.Unpickler):
    """Unpickler of plain data: what msgpack knows, sets, dates and times, decimals, UUIDs, windows."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._size = len(data)
        self._find_class = plain_classes()

    @override
    def load(self) -> Any:
        """Return the value.

        Raises:
            UnpicklingError: it is not plain data, contains itself, or is nested more than 200 deep; or it is much
                longer written out than pickled, since a pickle has each part once that is in several places.
        """
        value = super().load()
        _check_extent(value, _PART * self._size + _MOST_SHARED)
        return value

    @override
    def find_class(self, module: str, name: str) -> Any:
        """Return a class of plain data; refuse any other."""
        return self._find_class(module, name)


def _check_extent(value: Any, most: int) -> None:
    """Raise UnpicklingError for a value whose text would be too long, or without an end."""
    level, depth = [value], 0
    while level:
        depth += 1
        inner: list[Any] = []
        for part in level:
            if isinstance(part, (str, bytes, bytearray)):
                most -= len(part)
            elif isinstance(part, (list, tuple, set, frozenset, dict)):
                most -= _PART * len(part)
                if most > 0:
                    inner += part
                    inner += part.values() if isinstance(part, dict) else ()
            if most <= 0:
                raise pickle.UnpicklingError("the value is too long to be written out")
        if inner and depth >= _DEEPEST:
            raise pickle.UnpicklingError("the value is nested too deeply, or contains itself")
        level = inner


def pickled_type(data: bytes) -> str:
    """Return the first class name in a pickle, which mostly is that of the object; empty if there is none."""
    texts: list[str] = []
    try:
        for operation, argument, _ in pickletools.genops(data):
            # Only the opcodes are read; nothing is unpickled. STACK_GLOBAL takes its name from the last text
            # before it.
            if operation.name in ("GLOBAL", "INST"):
                return str(argument).rpartition(" ")[2]
            if operation.name == "STACK_GLOBAL":
                return texts[-1] if texts else ""
            if isinstance(argument, str):
                texts.append(argument)
    except Exception:  # whatever broken bytes may cause
        pass
    return ""
