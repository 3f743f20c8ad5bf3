"""The queries, each in a file of its own: a function ``query`` of a stream of events that adds its steps.

What a query says may be final (one result per window, say) or may be said anew whenever it changes; ``final``
makes the answers of both kinds comparable.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import sluiceway as sw

from ..model import Event

__all__ = ["QUERIES", "Query"]


@dataclass(frozen=True)
class Query:
    """One of them.

    Attributes:
        name: as in ``q5``.
        title: what it asks.
        build: adds its steps to a stream of events.
        final: what its results come to in the end, in no particular order.
    """

    name: str
    title: str
    build: Callable[[sw.DataStream[Event]], sw.DataStream[Any]]
    final: Callable[[Iterable[Any]], list[Any]]


def _load(number: int) -> Query:
    module = import_module(f".q{number}", __name__)
    title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return Query(f"q{number}", title, module.query, module.final)


_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 17, 18, 19, 20)

QUERIES: Mapping[str, Query] = {query.name: query for query in map(_load, _NUMBERS)}
