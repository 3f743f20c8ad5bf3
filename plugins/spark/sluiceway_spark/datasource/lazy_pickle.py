"""Value on its way between Spark's Python processes, unpickled where its classes are found."""

from __future__ import annotations

import pickle
import sys
from hashlib import sha256
from typing import Generic, TypeVar, cast

from sluiceway.serializers.byvalue import dumps_by_value

__all__ = ["Shipped"]

T = TypeVar("T")


class Shipped(Generic[T]):
    """Value that is unpickled on first use, with the driver's search path.

    Args:
        value: what is to go.
        search_path: the driver's ``sys.path``, which Spark's Python processes lack.
    """

    def __init__(self, value: T, search_path: tuple[str, ...]) -> None:
        self._value: T | None = value
        self._search_path = search_path
        self._bytes = b""

    def __getstate__(self) -> tuple[bytes, tuple[str, ...]]:
        return self._bytes or dumps_by_value(self._value), self._search_path

    def __setstate__(self, state: tuple[bytes, tuple[str, ...]]) -> None:
        self._bytes, self._search_path = state
        self._value = None

    @property
    def digest(self) -> str:
        """SHA-256 of what has come, in hexadecimal; empty where it was not sent."""
        return sha256(self._bytes).hexdigest() if self._bytes else ""

    def get(self) -> T:
        """Return the value."""
        if self._bytes and self._value is None:
            sys.path += [entry for entry in self._search_path if entry not in sys.path]
            self._value = pickle.loads(self._bytes)
        return cast("T", self._value)
