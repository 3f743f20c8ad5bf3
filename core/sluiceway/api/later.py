"""Answers to names that people know and that are not here: called otherwise, or mistyped."""

from __future__ import annotations

from typing import Final, NoReturn

from sluiceway.elsewhere import refuse

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
        known: the tables of :mod:`sluiceway.elsewhere` to ask; ``DataStream`` unless given.

    Raises:
        AttributeError: with the name to use, where there is one.
    """
    refuse(owner, name, *(known or ("DataStream",)))
