"""Base of the parts of the state backend suite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sluiceway.keygroups import KeyGroupRange, key_group, subtask_for_key_group
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    MapStateDescriptor,
    StateBackend,
    ValueStateDescriptor,
)

__all__ = ["KEYS", "MAP", "VALUE", "Position", "StateBackendSuite"]


@dataclass(frozen=True)
class Position:
    """A value and a key of a class."""

    row: int
    column: int


VALUE = ValueStateDescriptor("value")
MAP = MapStateDescriptor("map")

KEYS: list[Any] = [
    *(f"key{i}" for i in range(40)),
    *range(40),
    None,
    "",
    b"bytes",
    1.5,
    ("pair", 1),
    ("deep", ("er", None)),
    frozenset({1, 2}),
    Position(1, 2),
]


class StateBackendSuite:
    """Base of suites, which makes backends and closes them after the test.

    Attributes:
        max_parallelism: key groups of the backends that the tests make.
        big_value_bytes: size of the largest value that is tried.
        can_rescale: whether a snapshot can be restored at another parallelism than it was taken at.
        examples: how many random histories are compared with plain dicts; 0 for none.
    """

    max_parallelism: int = 16
    big_value_bytes: int = 4 << 20
    can_rescale: bool = True
    examples: int = 30

    def make_backend(self) -> StateBackend:
        """Return a new state backend. Called for every keyed backend that a test makes."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_backend()")

    # -- helpers ---------------------------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Prepare a test; called by pytest. An override calls it, too."""
        self._open: list[KeyedStateBackend] = []

    def teardown_method(self) -> None:
        """Clean up after a test; called by pytest. An override calls it, too."""
        for backend in self._open:
            backend.close()

    def keyed(
        self, subtask: int = 0, parallelism: int = 1, restore: Iterable[KeyedSnapshot] | None = None
    ) -> KeyedStateBackend:
        """Return the keyed backend of a subtask, closed after the test."""
        own = KeyGroupRange.of_subtask(subtask, parallelism, self.max_parallelism)
        backend = self.make_backend().create_keyed(BackendContext("step", subtask, own, self.max_parallelism))
        self._open.append(backend)
        if restore is not None:
            backend.restore(restore)
        return backend

    def subtasks(
        self, parallelism: int, restore: Iterable[KeyedSnapshot] | None = None
    ) -> list[KeyedStateBackend]:
        """Return the keyed backends of all subtasks; each is given all snapshots."""
        snapshots = None if restore is None else list(restore)
        return [self.keyed(i, parallelism, snapshots) for i in range(parallelism)]

    def owner(self, key: Any, parallelism: int) -> int:
        """Return the subtask that a key belongs to."""
        return subtask_for_key_group(key_group(key, self.max_parallelism), parallelism, self.max_parallelism)
