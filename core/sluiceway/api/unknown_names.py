"""Error messages for attributes that do not exist: mistyped, or known by another name here."""

from __future__ import annotations

from typing import Final, NoReturn

from sluiceway.util.name_hints import refuse

__all__ = ["KEYED_ONLY", "answer"]

KEYED_ONLY: Final = frozenset(
    {
        "reduce",
        "sum",
        "min",
        "max",
        "min_by",
        "max_by",
        "count",
        "aggregate",
        "map_with_state",
        "flat_map_with_state",
        "filter_with_state",
        "interval_join",
        "asof_join",
        "window",
        "count_window",
    }
)


def answer(owner: object, name: str, *known: str) -> NoReturn:
    """Raise what helps most for an attribute ``name`` that ``owner`` has not got.

    Args:
        owner: the object.
        name: of the attribute.
        known: the tables of :mod:`sluiceway.util.flink_names` to ask; ``DataStream`` unless given.

    Raises:
        AttributeError: with the name to use, where there is one.
    """
    refuse(owner, name, *(known or ("DataStream",)))
