"""Shows what a pipeline becomes: tasks, steps, and how records travel between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluiceway.errors import choose
from sluiceway.graph.planhtml import explain_html
from sluiceway.graph.planjson import explain_json
from sluiceway.graph.planmermaid import explain_mermaid
from sluiceway.graph.plantext import explain_text
from sluiceway.streamgraph import StreamGraph

__all__ = ["EXPLAIN_FORMATS", "explain"]

_FORMATS: Final[dict[str, Callable[[StreamGraph], str]]] = {
    "text": explain_text,
    "mermaid": explain_mermaid,
    "json": explain_json,
    "html": explain_html,
}

EXPLAIN_FORMATS: Final = tuple(_FORMATS)
"""The formats that :func:`explain` knows."""


def explain(graph: StreamGraph, format: str = "text") -> str:  # noqa: A002 (the word that people look for)
    """Show the plan of a stream graph.

    Args:
        graph: what to show.
        format: ``text`` for a terminal, ``mermaid`` for documents, ``json`` for programs (see
            :mod:`sluiceway.graph.planjson`), ``html`` for a browser or a notebook: one fragment that needs
            nothing else.

    Raises:
        UnknownNameError: there is no such format; lists those there are.
    """
    if format not in _FORMATS:
        raise choose("plan format", format, _FORMATS)
    return _FORMATS[format](graph)
