"""Names of the columns of a state, in tables that are read and in tables that are put."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple, TypeAlias

__all__ = ["CHANGED", "DOUBT", "FIELD", "Nested", "Taken", "nested_columns", "taken_columns", "unique_names"]

DOUBT: Final = b"sluiceway.put"
"""Metadata of a column of a read table from which the values cannot be taken back for certain."""
CHANGED: Final = "changed"
"""The column has values in another form, such as text, because Arrow has no type for all of them."""
FIELD: Final = "field"
"""The column is a field of dicts of no declared type."""

WINDOW: Final = ("window_start", "window_end")

_GIVE_WAY: Final = {"map_key": 1, "value": 2}

Nested: TypeAlias = "list[str | Nested]"
"""Columns of the parts of a tuple, which may be tuples."""


class Taken(NamedTuple):
    """Roles of the columns of a table.

    Attributes:
        key: the columns of the keys; empty if there are none.
        windows: whether ``window_start`` and ``window_end`` are those of the window.
        fields: the columns of the fields of the values; None if they are not all named as those of a read table.
    """

    key: list[str]
    windows: bool
    fields: dict[str, str] | None


def unique_names(roles: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return unique names of columns by role.

    Args:
        roles: the names by role, in the order of the columns. Map keys and values give way to all others, so that
            a field of a class never takes the name of a fixed column.
    """
    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    for role in sorted(roles, key=lambda role: _GIVE_WAY.get(role, 0)):
        found[role] = []
        for name in roles[role]:
            own = f"{role}_{name}" if name in taken else name
            while own in taken:
                own += "_"
            taken.add(own)
            found[role].append(own)
    return found


def taken_columns(names: Sequence[str], fields: Collection[str], others: Collection[str]) -> Taken:
    """Return the roles of columns that are named as those of a read table.

    Args:
        names: names of all columns.
        fields: names of the fields of the values; empty if the values are in one column.
        others: names of the fixed columns that the state has beside key and window, such as ``index``.
    """
    keys = [found for found in (["key"] if "key" in names else [], sorted(_numbered(names, "key"))) if found]
    windows = [True, False] if {*WINDOW} <= {*names} else [False]
    fixed = [name for name in others if name in names]
    # A field may be named as a fixed column: the first reading that finds all fields is that of a read table.
    for key, has_window in product(keys or [[]], windows):
        own = unique_names(
            {"key": key, "namespace": WINDOW if has_window else (), "others": fixed, "value": [*fields]}
        )["value"]
        if {*own} <= {*names}:
            return Taken(key, has_window, dict(zip(fields, own, strict=True)))
    return Taken(keys[0] if keys else [], windows[0], None)


def nested_columns(names: Sequence[str], prefix: str) -> Nested | None:
    """Return the columns ``prefix_0``, ``prefix_1_0`` and so on as the tuples that they are parts of.

    Returns:
        the columns; None if there are none, or some are missing.
    """
    found = {
        tuple(map(int, re.findall(r"\d+", name.removeprefix(prefix)))): name for name in _numbered(names, prefix)
    }
    return _branch(found, ()) if found else None


def _branch(found: Mapping[tuple[int, ...], str], path: tuple[int, ...]) -> Nested | None:
    below = {at[len(path)] for at in found if len(at) > len(path) and at[: len(path)] == path}
    parts: Nested = []
    for place in range(len(below)):
        here = (*path, place)
        part = found[here] if here in found else _branch(found, here)
        if not part:
            return None
        parts.append(part)
    return parts


def _numbered(names: Sequence[str], prefix: str) -> Iterator[str]:
    return (name for name in names if re.fullmatch(rf"{prefix}(_\d+)+", name))
