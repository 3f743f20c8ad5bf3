"""Lists of operator state in snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sluiceway.persisted import persisted

__all__ = ["ListMode", "ListSnapshot"]


class ListMode(Enum):
    """Distribution of a list's elements when a job is restored."""

    SPLIT = "list"
    """Each element goes to one subtask."""
    UNION = "union list"
    """Every subtask gets all elements."""
    RAW = "raw list"
    """Bytes that a function writes itself, in chunks; each goes to one subtask."""
    RAW_KEYED = "raw keyed"
    """Bytes that a function writes itself, a pair of key group and bytes each; they go with the key group."""


@persisted("ListSnapshot")
@dataclass(frozen=True, slots=True)
class ListSnapshot:
    """Snapshot of one list of a subtask.

    Attributes:
        name: the state's name.
        mode: how it is redistributed.
        serializer: name of the serializer that wrote the elements.
        version: that serializer's version.
        type_name: the declared type of an element as text, ``""`` where none was declared.
        subtask: index of the subtask.
        parallelism: number of subtasks.
        elements: serialized elements, in order.
        schema: of an element; None where it is pickled.
    """

    name: str
    mode: ListMode
    serializer: str
    version: int
    type_name: str
    subtask: int
    parallelism: int
    elements: tuple[bytes, ...] = ()
    schema: Any = field(default=None, hash=False)

    def __str__(self) -> str:
        content = self.type_name or "values of no declared type"
        return f"a {self.mode.value} of {content} (serializer {self.serializer!r}, version {self.version})"
