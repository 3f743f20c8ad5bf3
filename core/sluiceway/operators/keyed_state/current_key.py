"""Key whose state the handles of an operator read and write."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sluiceway.errors import StateError, UnstableKeyError
from sluiceway.keygroups import check_key

__all__ = ["CurrentKey"]


class CurrentKey:
    """Current key of an operator, shared by all its state handles.

    Attributes:
        current_key: the key of the record that is being processed. Not set at first.
        defaults: by state and namespace, the copies of defaults that handles have returned, by key. The store
            writes those that were changed.
    """

    __slots__ = ("current_key", "defaults")

    current_key: Any

    def __init__(self) -> None:
        self.defaults: dict[tuple[str, Hashable], dict[Any, Any]] = {}

    def explain(self, state: str, error: Exception) -> Exception:
        """Return the error to raise where the lookup of the current key's state has failed with ``error``."""
        try:
            key = self.current_key
        except AttributeError:
            return StateError(
                f"keyed state {state!r} is used without a current key (in process_batch(), call "
                "ctx.set_current_key(key) first): there is one only while a record is "
                "processed, not in open() or close(), nor for a broadcast record"
            )
        try:
            check_key(key)
        except UnstableKeyError as unstable:
            return unstable
        return error
