"""Plan of a pipeline: tasks, steps, and the edges between them."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from sluiceway.errors import choose
from sluiceway.streamgraph import StreamGraph

__all__ = ["EXPLAIN_FORMATS", "explain"]

EXPLAIN_FORMATS: Final = ("text", "mermaid", "json", "html")
"""The formats that :func:`explain` knows; each has a module of its own, loaded when it is asked for."""


def explain(graph: StreamGraph, format: str = "text") -> str:  # noqa: A002 (the word that people look for)
    """Return the plan of a stream graph as text.

    Args:
        graph: the stream graph.
        format: ``text`` for a terminal, ``mermaid`` for documents, ``json`` for programs (see
            :mod:`sluiceway.graph.plan.json`), ``html`` for a browser or a notebook: one fragment that needs
            nothing else.

    Raises:
        UnknownNameError: there is no such format; lists the formats.
    """
    if format not in EXPLAIN_FORMATS:
        raise choose("plan format", format, EXPLAIN_FORMATS)
    module = import_module(f"sluiceway.graph.plan.{format}")
    shown: str = getattr(module, f"explain_{format}")(graph)
    return shown
